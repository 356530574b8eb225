// The end of a product: partial sums of the warps that shared a tile, the activation, and digits for the product that follows.
#pragma once

#include "formats.cuh"

// silu(min(gate, limit)) · clamp(up, ±limit)
PS_DEVICE float swiglu(float gate, float up, float limit) {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return gate / (1.0f + expf(-gate)) * up;
}

// Vectors written 16 numbers at a time by blocks in any order, to be read as digits by the next kernel: whoever writes the last
// tile of 256 columns turns them into digits.  Counters start at zero and end at zero.
struct DigitOutput {
    float* values;  // [vectors, cells · 256], zeros behind the width
    u8* digits;     // planes of 256 digits: of a vector, of a cell, high and low; or null: none
    float* scales;  // of a vector, of a cell
    u32* counters;  // [counted, cells]
    int cells;
    int piece_bytes, vector_bytes, cell_bytes, plane_bytes;  // how far digits lie apart; piece: of eight vectors
    int piece_scales, vector_scales, cell_scales;            // and scales
};

// One whole warp.  True for the warp that brought the last of `tiles` tiles of the cell.
PS_DEVICE bool is_last(u32* counter, int tiles, int lane) {
    __syncwarp();
    u32 before = 0;
    if (lane == 0) before = count_up(counter);
    before = __shfl_sync(ALL, before, 0);
    if (before + 1 != static_cast<u32>(tiles)) return false;
    if (lane == 0) *counter = 0;
    __syncwarp();
    return true;
}

// One whole warp: cell `cell` of vector `vector`.
PS_DEVICE void write_digits(const DigitOutput& out, int vector, int cell, int lane) {
    const size_t at = static_cast<size_t>(vector) * out.cells + cell;
    const float4* from = reinterpret_cast<const float4*>(out.values + at * CELL + lane * 8);
    const float4 a = __ldcg(from), b = __ldcg(from + 1);  // written by other SMs: not from this one's L1
    const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    const Digits d = to_digits(v, largest_of(v));
    const int piece = vector >> LOG_PIECE, own = vector & (PIECE - 1);
    u8* to = out.digits + static_cast<size_t>(piece) * out.piece_bytes + own * out.vector_bytes + cell * out.cell_bytes + lane * 8;
    *reinterpret_cast<uint2*>(to) = d.high;
    *reinterpret_cast<uint2*>(to + out.plane_bytes) = d.low;
    if (lane == 0) out.scales[static_cast<size_t>(piece) * out.piece_scales + own * out.vector_scales + cell * out.cell_scales] = d.scale;
}

// Tiles of a cell: 16, or fewer in the last.
PS_DEVICE int tiles_of_cell(int tiles, int cell) { return min(16, tiles - cell * 16); }

// ── partial sums ─────────────────────────────────────────────────────────────────────────────────────────────────────

PS_DEVICE int whole(int floats) { return (floats + 31) / 32 * 32; }  // as many as 128 bytes take

// Slices of a tile, the work of neighbouring warps, as a power of two: a rule of the matrix alone, because the order of sums follows from
// it.
PS_DEVICE int log_slices_for(int cells, int most) {
    while (1 << most > cells) most--;
    return most;
}
