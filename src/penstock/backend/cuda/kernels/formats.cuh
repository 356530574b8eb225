// One cell (16 rows × 256 columns) of every packed format against up to 4 · SETS rows of inputs on the tensor cores.
//
// Weights are the 16 × 32 operand, inputs the 32 × 8 one: column 2r holds the high digits of row r, column 2r + 1 the low ones,
// so lane 4g + t ends up with (255 · high + low) of weight rows g and g + 8 and input row t.  Integers are exact; floats are
// added in the order written here, whatever the number of rows, so a row's bits do not depend on its neighbours.
//
// Instructions for 512 weights (one 16 × 32 operand) in the machine code, against those that four schedulers can issue while memory
// delivers the weights at 4.5 TB/s (132 SMs, 1.75 GHz): Q8_0 13 of 104, IQ2_XXS 30 of 26, the others in between.  Half of IQ2_XXS's are
// logic and shifts, which run at half rate.  Where inputs are in registers (`HELD`) it is 27.
#pragma once

#include "inputs.cuh"

constexpr int STEPS = 8;  // of 32 columns

enum Format { Q8_0 = 0, F16 = 1, IQ2_XXS = 2, Q2_K = 3, Q4_K = 4, MXFP4 = 5, BF16 = 6, F32 = 7, Q6_K = 8, FP8 = 9 };

PS_DEVICE constexpr int cell_bytes(int format) {
    switch (format) {
        case Q8_0: return 4352;
        case F16:
        case BF16: return 8192;
        case IQ2_XXS: return 1120;
        case Q2_K: return 1344;
        case Q4_K: return 2368;
        case MXFP4: return 2176;
        case Q6_K: return 4384;
        case FP8: return 4128;
        default: return 16384;
    }
}

// What is streamed at a time: a cell, or a part of one where cells are large.  Parts are whole steps, one behind the other.
PS_DEVICE constexpr int piece_columns(int format) { return format == F16 || format == BF16 ? 128 : format == F32 ? 64 : CELL; }
PS_DEVICE constexpr int piece_bytes(int format) { return cell_bytes(format) / (CELL / piece_columns(format)); }

// What a lane gathers for weight rows g and g + 8 and input rows t, 4 + t, ….
template <int SETS>
struct Sums {
    float v[SETS][2] = {};
};

// The plane of a lane in the operand of set `set`: of two sets in each piece of rows.  A lane whose row does not exist reads another row's:
// columns of the operand do not meet, and nobody looks at the results.
PS_DEVICE int plane_of(const InputPlan& p, int set, int lane, int stride) {
    const int g = lane / 4, in_piece = set % 2;
    return set / 2 * p.piece() + (4 * in_piece + g / 2 < p.rows ? 8 * in_piece + g : g % 2) * stride;
}

// Inputs of a cell as planes in shared memory.
template <int SETS>
struct PlaneInputs {
    static constexpr bool NEGATIVE = SETS == 1;  // whether there is a negated copy: many rows have no room for one
    static constexpr bool HELD = false;          // whether they are in registers
    const char* plane[SETS];  // this lane's, at the cell's first column
    int negated;              // from a plane to its negative

    PS_DEVICE PlaneInputs(const char* at, const InputPlan& p, int cell, int lane) : negated(p.negated_at()) {
#pragma unroll
        for (int s = 0; s < SETS; s++) plane[s] = at + plane_of(p, s, lane, p.digit_stride()) + cell * CELL + lane % 4 * 8;
    }
    PS_DEVICE uint2 step(int set, int i) const { return load8(plane[set] + i * 32); }
    PS_DEVICE uint2 negative(int set, int i) const { return load8(plane[set] + negated + i * 32); }
};

// Adds the inputs under a mask of 0xff bytes, which is −1 times the mask's numbers.  To read inputs negated costs least; where there is
// no room for a second copy masks are cleared to 1.
template <bool NEGATIVE>
PS_DEVICE void mend(int (&c)[4], const u32 (&mask)[4], uint2 x, uint2 negative) {
    if (NEGATIVE) return mma_bytes(c, mask, negative);
    const u32 ones[4] = {mask[0] & 0x01010101, mask[1] & 0x01010101, mask[2] & 0x01010101, mask[3] & 0x01010101};
    mma_bytes(c, ones, x);
}

PS_DEVICE int join(int high, int low) { return high * 255 + low; }
// The same of what `mma_rounded` gives, as the nearest float.
PS_DEVICE float join_rounded(int high, int low) { return fmaf(rounded_float(high), 255.0f, rounded_float(low)); }
struct Rounded {
    int from[4];
    PS_DEVICE Rounded() : from{ROUND_BITS, ROUND_BITS, ROUND_BITS, ROUND_BITS} {}
};

// scale[s]: of input row 4 s + t in this cell.  Each adds its cell to `sums`.

template <int SETS, class Source>
PS_DEVICE void cell_q8_0(const char* cell, int lane, const Source& x, const float (&scale)[SETS], Sums<SETS>& sums) {
    const int g = lane / 4;
    const uint4 s0 = load16(cell + 4096 + g * 32), s1 = load16(cell + 4096 + g * 32 + 16);
    const u32 scales[STEPS] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
    const Rounded rounded;
    float v[SETS][2] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint4 w = load16(cell + i * 512 + lane * 16);
        const u32 a[4] = {w.x, w.y, w.z, w.w};
        const float d0 = low_half(scales[i]), d1 = high_half(scales[i]);
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            int c[4];
            mma_rounded(c, a, x.step(s, i), rounded.from);
            v[s][0] = fmaf(join_rounded(c[0], c[1]), d0, v[s][0]);
            v[s][1] = fmaf(join_rounded(c[2], c[3]), d1, v[s][1]);
        }
    }
#pragma unroll
    for (int s = 0; s < SETS; s++)
        for (int h = 0; h < 2; h++) sums.v[s][h] = fmaf(v[s][h], scale[s], sums.v[s][h]);
}

// Sixteen columns share a scale: the operand once with each half of its columns.
template <int SETS, class Source>
PS_DEVICE void cell_q6_k(const char* cell, int lane, const Source& x, const float (&scale)[SETS], Sums<SETS>& sums) {
    const int g = lane / 4, t = lane % 4;
    const uint4 s0 = load16(cell + 4096 + g * 32), s1 = load16(cell + 4096 + g * 32 + 16);
    const u32 scales[2][4] = {{s0.x, s0.y, s0.z, s0.w}, {s1.x, s1.y, s1.z, s1.w}};
    const u32 d = load4(cell + 4352 + g * 4);
    const Rounded rounded;
    float v[SETS][2] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint4 w = load16(cell + i * 512 + lane * 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {  // columns 16 half …: lanes t / 2 == half
            const bool mine = t / 2 == half;
            const u32 a[4] = {mine ? w.x : 0, mine ? w.y : 0, mine ? w.z : 0, mine ? w.w : 0};
            const int at = 2 * i + half;
            const float f0 = static_cast<float>(static_cast<i8>(scales[0][at / 4] >> at % 4 * 8));
            const float f1 = static_cast<float>(static_cast<i8>(scales[1][at / 4] >> at % 4 * 8));
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                int c[4];
                mma_rounded(c, a, x.step(s, i), rounded.from);
                v[s][0] = fmaf(join_rounded(c[0], c[1]), f0, v[s][0]);
                v[s][1] = fmaf(join_rounded(c[2], c[3]), f1, v[s][1]);
            }
        }
    }
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        sums.v[s][0] = fmaf(v[s][0] * low_half(d), scale[s], sums.v[s][0]);
        sums.v[s][1] = fmaf(v[s][1] * high_half(d), scale[s], sums.v[s][1]);
    }
}

// The grid of IQ2_XXS sixteen times, copy c of entry e at (16 e + c) · 8 bytes: lanes never meet in a bank.
constexpr int GRID_BYTES = 256 * 16 * 8;

// One of 16 warps' share: sixteen entries.  entry: the lane's own, GRID_SHARE · number + lane % 16.
constexpr int GRID_SHARE = 16;
PS_DEVICE void fill_grid(char* grid, int number, int lane, uint2 entry) {
#pragma unroll
    for (int k = 0; k < 4; k++) {  // a warp writes what lies side by side
        const u32 x = __shfl_sync(ALL, entry.x, k * 4 + lane / 8), y = __shfl_sync(ALL, entry.y, k * 4 + lane / 8);
        reinterpret_cast<uint4*>(grid)[(number * 4 + k) * WARP + lane] = {x, y, x, y};
    }
}

// Numbers that the compiler must not know: it would make shifts and masks of a product, and those run at half the rate of products.
PS_DEVICE u32 hidden(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}
// (a & b) | c in one instruction; c must not be known to the compiler, which would make two of it.
PS_DEVICE u32 and_or(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// CELLS cells against the same inputs (gate and up), `apart` bytes from each other.
template <int CELLS, class Source>
PS_DEVICE void cells_iq2_xxs(const char* cell, int apart, const char* grid, int lane, const Source& x, float scale,
                             Sums<1>* const (&sums)[CELLS]) {
    const int g = lane / 4;
    const u32 copy = shared_address(grid) + lane % 16 * 8, one = hidden(1), two = hidden(2), stride = hidden(128);
    int total[CELLS][4] = {};
#pragma unroll 1  // what is run a few times only is fetched once
    for (int half = 0; half < 2; half++) {  // four steps
        uint2 index[CELLS], signs[CELLS];
        u32 scales[CELLS][2];
#pragma unroll
        for (int k = 0; k < CELLS; k++) {
            const char* at = cell + k * apart;
            index[k] = load8(at + lane * 16 + half * 8);
            signs[k] = load8(at + 512 + lane * 16 + half * 8);
            scales[k][0] = *reinterpret_cast<const u16*>(at + 1024 + g * 8 + half * 2);
            scales[k][1] = *reinterpret_cast<const u16*>(at + 1024 + g * 8 + 4 + half * 2);
        }
#pragma unroll
        for (int order = 0; order < 4; order++) {  // steps 1, 0, 3, 2: signs are shifted out from the top
            const int j = order ^ 1, i = half * 4 + j;
            const uint2 b = x.step(0, i);
            uint2 n = {0, 0};
            if constexpr (Source::NEGATIVE) n = x.negative(0, i);
#pragma unroll
            for (int k = 0; k < CELLS; k++) {
                const u32 pair = j < 2 ? index[k].x : index[k].y;
                u32& bits = j < 2 ? signs[k].x : signs[k].y;
                const uint2 v0 = load_shared8((pair >> j % 2 * 16 & 255) * stride + copy);
                const uint2 v1 = load_shared8(permute(pair, 0, j % 2 ? 0x4443 : 0x4441) * stride + copy);
                // Masks of the negative bytes.  v ^ mask is −v − 1 there; a second product, of the masks, makes up for the 1.
                u32 mask[4];
#pragma unroll
                for (int r = 3; r >= 0; r--) mask[r] = permute_signs(bits, 0, 0xba98), bits *= two;
                const u32 a[4] = {v0.x ^ mask[0], v1.x ^ mask[1], v0.y ^ mask[2], v1.y ^ mask[3]};
                const int f0 = static_cast<int>(and_or(j ? scales[k][0] >> (4 * j - 1) : scales[k][0] * two, 0x1e, one));
                const int f1 = static_cast<int>(and_or(j ? scales[k][1] >> (4 * j - 1) : scales[k][1] * two, 0x1e, one));
                int c[4] = {};
                mma_bytes(c, a, b);
                mend<Source::NEGATIVE>(c, mask, b, n);
                total[k][0] += c[0] * f0, total[k][1] += c[1] * f0;
                total[k][2] += c[2] * f1, total[k][3] += c[3] * f1;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < CELLS; k++) {
        const u32 d = load4(cell + k * apart + 1088 + g * 4);
        const float d0 = low_half(d) * 0.125f, d1 = high_half(d) * 0.125f;
        const int* v = total[k];
        const float a = fmaf(static_cast<float>(v[0]), 255.0f, static_cast<float>(v[1])) * d0;
        const float b = fmaf(static_cast<float>(v[2]), 255.0f, static_cast<float>(v[3])) * d1;
        sums[k]->v[0][0] = fmaf(a, scale, sums[k]->v[0][0]);
        sums[k]->v[0][1] = fmaf(b, scale, sums[k]->v[0][1]);
    }
}

// The same for one cell and inputs in registers, where every instruction counts.  The grid lies at a multiple of 64 KB of shared memory,
// entry e at 256 e, so that one permutation makes an address.  NARROW_GRID: where there is less, it has half as many copies, anywhere.
constexpr int WIDE_GRID = 1 << 16;
#ifdef NARROW_GRID
constexpr int HELD_COPIES = 8, HELD_ENTRY = 64;  // bytes from an entry to the next
#else
constexpr int HELD_COPIES = 16, HELD_ENTRY = 256;
#endif
PS_DEVICE u32 entry_at(u32 copy, u32 bytes, int number, u32 apart) {  // of the entry that is byte `number`
#ifdef NARROW_GRID
    return permute(bytes, 0, 0x4440 + number) * apart + copy;
#else
    return permute(bytes, copy, 0x7604 + 16 * number);
#endif
}
template <class Source>
PS_DEVICE void cell_iq2_xxs(const char* cell, const char* grid, int lane, const Source& x, float scale, Sums<1>& sums) {
    const int g = lane / 4;
    const u32 copy = shared_address(grid) + lane % HELD_COPIES * 8, two = hidden(2), apart = hidden(HELD_ENTRY);
    const uint4 index = load16(cell + lane * 16), signs = load16(cell + 512 + lane * 16);
    const uint2 small = load8(cell + 1024 + g * 8);
    const u32 d = load4(cell + 1088 + g * 4);
    // Twice the scale and one, of rows g and g + 8: even steps, odd steps
    const u32 factors[2][2] = {{(small.x & 0x0f0f0f0f) * two + 0x01010101, (small.x >> 4 & 0x0f0f0f0f) * two + 0x01010101},
                               {(small.y & 0x0f0f0f0f) * two + 0x01010101, (small.y >> 4 & 0x0f0f0f0f) * two + 0x01010101}};
    u32 bits[4] = {signs.x, signs.y, signs.z, signs.w};
    const u32 pairs[4] = {index.x, index.y, index.z, index.w};
    int total[4] = {};
#pragma unroll
    for (int order = 0; order < STEPS; order++) {  // steps 1, 0, 3, 2 …
        const int i = order ^ 1;
        const uint2 v0 = load_shared8(entry_at(copy, pairs[i / 2], i % 2 * 2, apart));
        const uint2 v1 = load_shared8(entry_at(copy, pairs[i / 2], i % 2 * 2 + 1, apart));
        u32 mask[4];
#pragma unroll
        for (int r = 3; r >= 0; r--) mask[r] = permute_signs(bits[i / 2], 0, 0xba98), bits[i / 2] *= two;
        const u32 a[4] = {v0.x ^ mask[0], v1.x ^ mask[1], v0.y ^ mask[2], v1.y ^ mask[3]};
        const int f0 = static_cast<int>(permute(factors[0][i % 2], 0, 0x4440 + i / 2));
        const int f1 = static_cast<int>(permute(factors[1][i % 2], 0, 0x4440 + i / 2));
        int c[4] = {};
        mma_bytes(c, a, x.step(0, i));
        mma_bytes(c, mask, x.negative(0, i));
        total[0] += c[0] * f0, total[1] += c[1] * f0;
        total[2] += c[2] * f1, total[3] += c[3] * f1;
    }
    const float d0 = low_half(d) * 0.125f, d1 = high_half(d) * 0.125f;
    sums.v[0][0] = fmaf(fmaf(static_cast<float>(total[0]), 255.0f, static_cast<float>(total[1])) * d0, scale, sums.v[0][0]);
    sums.v[0][1] = fmaf(fmaf(static_cast<float>(total[2]), 255.0f, static_cast<float>(total[3])) * d1, scale, sums.v[0][1]);
}

template <int SETS, class Source>
PS_DEVICE void cell_q2_k(const char* cell, int lane, const Source& x, const float (&scale)[SETS], Sums<SETS>& sums) {
    const int g = lane / 4, t = lane % 4;
    const uint4 w0 = load16(cell + lane * 16), w1 = load16(cell + 512 + lane * 16);
    const u32 words[STEPS] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
    const uint4 small = load16(cell + 1024 + g * 32 + t / 2 * 16);
    const uint2 d = load8(cell + 1280 + g * 8);
    // Scales are at most 15 and codes at most 3: their products, and four times those, are bytes without a sign, and the sums of a cell
    // stay integers.  Row g + 8 has them four times, which saves shifts.
    int c[SETS][4] = {}, m[SETS][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const u32 b0 = i < 4 ? small.x : small.y, b1 = i < 4 ? small.z : small.w, w = words[i], own = 0x4440 + i % 4, all = 0x1111 * (i % 4);
        const u32 s0 = permute(b0 & 0x0f0f0f0f, 0, own), s1 = permute(b1 & 0x0f0f0f0f, 0, own), v = w >> 4;
        const u32 a[4] = {(w & 0x03030303) * s0, (w & 0x0c0c0c0c) * s1, (v & 0x03030303) * s0, (v & 0x0c0c0c0c) * s1};
        const u32 m0 = permute(b0 >> 4 & 0x0f0f0f0f, 0, all), m1 = permute(b1 >> 4 & 0x0f0f0f0f, 0, all);
        const u32 minimums[4] = {m0, m1, m0, m1};
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            mma_unsigned(c[s], a, x.step(s, i));
            if constexpr (!Source::HELD) mma_bytes(m[s], minimums, x.step(s, i));
        }
    }
    if constexpr (Source::HELD) {  // sums of sixteen inputs, in two digits: step i of lane t is 4 (t % 2) …
        const u32 m0 = (t % 2 ? small.y : small.x) >> 4 & 0x0f0f0f0f, m1 = (t % 2 ? small.w : small.z) >> 4 & 0x0f0f0f0f;
        int high[4] = {};
        mma_bytes_16(high, m0, m1, x.sums.x);
        mma_bytes_16(m[0], m0, m1, x.sums.y);
#pragma unroll
        for (int k = 0; k < 4; k++) m[0][k] += high[k] * 128;
    }
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const float a = low_half(d.x) * static_cast<float>(join(c[s][0], c[s][1]));
        const float b = low_half(d.y) * 0.25f * static_cast<float>(join(c[s][2], c[s][3]));
        const float v0 = fmaf(-high_half(d.x), static_cast<float>(join(m[s][0], m[s][1])), a);
        const float v1 = fmaf(-high_half(d.y), static_cast<float>(join(m[s][2], m[s][3])), b);
        sums.v[s][0] = fmaf(v0, scale[s], sums.v[s][0]);
        sums.v[s][1] = fmaf(v1, scale[s], sums.v[s][1]);
    }
}

template <int SETS, class Source>
PS_DEVICE void cell_q4_k(const char* cell, int lane, const Source& x, const float (&scale)[SETS], Sums<SETS>& sums) {
    const int g = lane / 4;
    const uint4 small0 = load16(cell + 2048 + g * 32), small1 = load16(cell + 2048 + g * 32 + 16);
    const uint2 d = load8(cell + 2304 + g * 8);
    int total[SETS][4] = {}, m[SETS][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
        const u32 a[4] = {w.x & 0x0f0f0f0f, w.x >> 4 & 0x0f0f0f0f, w.y & 0x0f0f0f0f, w.y >> 4 & 0x0f0f0f0f};
        const int shift = i % 4 * 8;
        const int f0 = (i < 4 ? small0.x : small0.y) >> shift & 255, f1 = (i < 4 ? small1.x : small1.y) >> shift & 255;
        const u32 m0 = ((i < 4 ? small0.z : small0.w) >> shift & 255) * 0x01010101;
        const u32 m1 = ((i < 4 ? small1.z : small1.w) >> shift & 255) * 0x01010101;
        const u32 minimums[4] = {m0, m1, m0, m1};
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            const uint2 b = x.step(s, i);
            int c[4] = {};
            mma_bytes(c, a, b);
            mma_bytes(m[s], minimums, b);
            total[s][0] += c[0] * f0, total[s][1] += c[1] * f0;
            total[s][2] += c[2] * f1, total[s][3] += c[3] * f1;
        }
    }
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        const float a = fmaf(static_cast<float>(total[s][0]), 255.0f, static_cast<float>(total[s][1])) * low_half(d.x);
        const float b = fmaf(static_cast<float>(total[s][2]), 255.0f, static_cast<float>(total[s][3])) * low_half(d.y);
        const float v0 = fmaf(-high_half(d.x), static_cast<float>(join(m[s][0], m[s][1])), a);
        const float v1 = fmaf(-high_half(d.y), static_cast<float>(join(m[s][2], m[s][3])), b);
        sums.v[s][0] = fmaf(v0, scale[s], sums.v[s][0]);
        sums.v[s][1] = fmaf(v1, scale[s], sums.v[s][1]);
    }
}

// 2^(e − 128): half of the block's scale, because the values below are doubled.
PS_DEVICE float half_power(u32 e) { return bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

template <int SETS, class Source>
PS_DEVICE void cell_mxfp4(const char* cell, int lane, const Source& x, const float (&scale)[SETS], Sums<SETS>& sums) {
    const int g = lane / 4;
    const uint4 e = load16(cell + 2048 + g * 16);
    const Rounded rounded;
    float v[SETS][2] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint2 w = load8(cell + i / 2 * 512 + lane * 16 + i % 2 * 8);
        u32 a[4], mask[4];
#pragma unroll
        for (int k = 0; k < 2; k++) {  // registers 2k and 2k + 1
            const u32 codes = k ? w.y : w.x, sizes = codes & 0x77777777, up = codes << 4;
            mask[2 * k] = permute_signs(up, codes, 0xd9c8);  // signs of nibbles 0 … 3
            mask[2 * k + 1] = permute_signs(up, codes, 0xfbea);
            a[2 * k] = permute(0x03020100, 0x0c080604, sizes) ^ mask[2 * k];
            a[2 * k + 1] = permute(0x03020100, 0x0c080604, sizes >> 16) ^ mask[2 * k + 1];
        }
        const float d0 = half_power((i < 4 ? e.x : e.y) >> i % 4 * 8 & 255);
        const float d1 = half_power((i < 4 ? e.z : e.w) >> i % 4 * 8 & 255);
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            int c[4];
            uint2 negative = {0, 0};
            if constexpr (Source::NEGATIVE) negative = x.negative(s, i);
            mma_rounded(c, a, x.step(s, i), rounded.from);
            mend<Source::NEGATIVE>(c, mask, x.step(s, i), negative);
            v[s][0] = fmaf(join_rounded(c[0], c[1]), d0, v[s][0]);
            v[s][1] = fmaf(join_rounded(c[2], c[3]), d1, v[s][1]);
        }
    }
#pragma unroll
    for (int s = 0; s < SETS; s++)
        for (int h = 0; h < 2; h++) sums.v[s][h] = fmaf(v[s][h], scale[s], sums.v[s][h]);
}

// Of the formats that experts have.
template <class Source>
PS_DEVICE void add_expert_cell(int format, const char* cell, const char* grid, int lane, const Source& x, const float (&scale)[1],
                               Sums<1>& sums) {
    if (format == IQ2_XXS) {
        if constexpr (Source::HELD) {
            cell_iq2_xxs(cell, grid, lane, x, scale[0], sums);
        } else {
            Sums<1>* const one[1] = {&sums};
            cells_iq2_xxs<1>(cell, 0, grid, lane, x, scale[0], one);
        }
    }
    if (format == Q2_K) cell_q2_k<1>(cell, lane, x, scale, sums);
    if (format == Q4_K) cell_q4_k<1>(cell, lane, x, scale, sums);
    if (format == MXFP4) cell_mxfp4<1>(cell, lane, x, scale, sums);
    if (format == Q8_0) cell_q8_0<1>(cell, lane, x, scale, sums);
    if (format == Q6_K) cell_q6_k<1>(cell, lane, x, scale, sums);
}

// F16: 128 columns
template <int SETS>
PS_DEVICE void piece_f16(const char* piece, int lane, const char* at, const InputPlan& p, int column, float (&sums)[SETS][2]) {
    const int t = lane % 4;
    float c[SETS][4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint4 w = load16(piece + i * 512 + lane * 16);
        const u32 a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            mma_halves(c[s], a, load8(at + p.halves_at() + plane_of(p, s, lane, p.half_stride()) + column * 2 + i * 32 + t * 8));
        }
    }
#pragma unroll
    for (int s = 0; s < SETS; s++) sums[s][0] += c[s][0] + c[s][1], sums[s][1] += c[s][2] + c[s][3];
}


// Two e4m3 numbers as halfs, exact.
PS_DEVICE u32 halves_of_fp8(u32 pair) {
    u32 d;
#if CAPABILITY >= 890
    asm("{ .reg .b16 s; cvt.u16.u32 s, %1; cvt.rn.f16x2.e4m3x2 %0, s; }" : "=r"(d) : "r"(pair));
#else  // their bits are those of halfs that are 2^-8 of them, but for the largest, which is none
    const u32 bytes = permute(pair, 0, 0x1404), sizes = bytes >> 1 & 0x3f803f80, none = __vcmpeq2(sizes, 0x3f803f80);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(sizes), "r"(0x5c005c00));  // 2^8
    d |= (bytes & 0x80008000) | (none & 0x7fff7fff);
#endif
    return d;
}
PS_DEVICE float power_of_two(u32 e) { return bits_float(e ? e << 23 : 0x00400000u); }  // 2^(e − 127)

// FP8: a cell, 128 columns to an exponent, as halfs.
template <int SETS>
PS_DEVICE void cell_fp8(const char* cell, int lane, const char* at, const InputPlan& p, int column, float (&sums)[SETS][2]) {
    const int g = lane / 4, t = lane % 4;
    const u32 exponents = load4(cell + 4096 + g * 4);  // of row g twice, of row g + 8 twice
    for (int half = 0; half < 2; half++) {
        float part[SETS][4] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int i = half * 8 + k;
            const uint2 w = load8(cell + i * 256 + lane * 8);
            const u32 a[4] = {halves_of_fp8(w.x & 0xffff), halves_of_fp8(w.x >> 16), halves_of_fp8(w.y & 0xffff), halves_of_fp8(w.y >> 16)};
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                mma_halves(part[s], a, load8(at + p.halves_at() + plane_of(p, s, lane, p.half_stride()) + column * 2 + i * 32 + t * 8));
            }
        }
        const float e0 = power_of_two(exponents >> half * 8 & 255), e1 = power_of_two(exponents >> (16 + half * 8) & 255);
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            sums[s][0] = fmaf(part[s][0] + part[s][1], e0, sums[s][0]);
            sums[s][1] = fmaf(part[s][2] + part[s][3], e1, sums[s][1]);
        }
    }
}

// BF16 and F32 in plain float arithmetic: eight weights of a lane at a time, four columns of rows g and g + 8.  The four lanes of
// a quad hold the sums of different columns.
template <int FORMAT, int ROWS>
PS_DEVICE void piece_floats(const char* piece, int lane, const char* at, const InputPlan& p, int column, float (&v)[ROWS][2]) {
    const int t = lane % 4;
    for (int i = 0; i < piece_columns(FORMAT) / 16; i++) {
        float w[2][4];  // [half][column]
        if (FORMAT == BF16) {
            const uint4 raw = load16(piece + i * 512 + lane * 16);
            const u32 r[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int k = 0; k < 4; k++)
                w[k % 2][k / 2 * 2] = bits_float(r[k] << 16), w[k % 2][k / 2 * 2 + 1] = bits_float(r[k] & 0xffff0000);
        } else {
            const uint4 a = load16(piece + i * 1024 + lane * 32), b = load16(piece + i * 1024 + lane * 32 + 16);
            w[0][0] = bits_float(a.x), w[0][1] = bits_float(a.y), w[1][0] = bits_float(a.z), w[1][1] = bits_float(a.w);
            w[0][2] = bits_float(b.x), w[0][3] = bits_float(b.y), w[1][2] = bits_float(b.z), w[1][3] = bits_float(b.w);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= p.rows) break;
            const float* plane = reinterpret_cast<const float*>(at + p.floats_at() + r * p.float_stride());
            const float4 x = *reinterpret_cast<const float4*>(plane + column + i * 16 + t * 4);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                v[r][h] = fmaf(w[h][0], x.x, v[r][h]), v[r][h] = fmaf(w[h][1], x.y, v[r][h]);
                v[r][h] = fmaf(w[h][2], x.z, v[r][h]), v[r][h] = fmaf(w[h][3], x.w, v[r][h]);
            }
        }
    }
}
