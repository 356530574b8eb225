// Rows of inputs as halfs for prefill_product.cu: x = scale · (half, or half + rest), one power of two for a row, columns in the order
// of `input_place`.  A chunk is eight halfs, 16 bytes.
#pragma once

#include "unpack.cuh"

struct HalfRows {
    u16* halves;      // [planes, rows, columns]; columns is a multiple of 256
    float* scales;    // [rows]
    long long plane;  // halfs from a plane to the next
    int columns, planes;
};

// Number i of a chunk is this column.
PS_DEVICE int chunk_column(int chunk, int i) { return chunk / 4 * STEP + i / 2 * 8 + chunk % 4 * 2 + i % 2; }

PS_DEVICE void store_chunk(const HalfRows& out, int row, int chunk, const float (&v)[8]) {
    u32 words[4];
    u16* to = out.halves + static_cast<size_t>(row) * out.columns + chunk * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = to_halves(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
    if (out.planes == 1) return;
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = to_halves(v[2 * i] - low_half(words[i]), v[2 * i + 1] - high_half(words[i]));
    *reinterpret_cast<uint4*>(to + out.plane) = {words[0], words[1], words[2], words[3]};
}

struct RowPower {
    float up, down;  // up: with the norm's factor; it brings the largest number to between 512 and 1024
};

// All threads of a block of eight warps: squares and largest of the row's numbers.  scratch: 16 floats
PS_DEVICE RowPower row_power(float squares, float most, int width, bool norm, float eps, float* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    squares = warp_sum(squares), most = warp_max(most);
    if (lane == 0) scratch[warp] = squares, scratch[8 + warp] = most;
    __syncthreads();
    squares = 0, most = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) squares += scratch[w], most = fmaxf(most, scratch[8 + w]);
    const float factor = norm ? 1.0f / sqrtf(squares / static_cast<float>(width) + eps) : 1.0f;
    const int exponent = static_cast<int>(float_bits(most * factor) >> 23 & 255);
    const int shift = min(max(127 + 9 - exponent, -120), 120);
    return {factor * bits_float(static_cast<u32>(127 + shift) << 23), bits_float(static_cast<u32>(127 - shift) << 23)};
}
