// Inputs of products.  A block makes them ready for all its warps, in the forms that its weights ask for:
//
//   DIGITS   two signed base-255 digits with one scale per 256 columns, the CPU kernels' integers:
//            x ≈ scale · (255 · high + low), |high|, |low| ≤ 127
//   NEGATED  the same digits with the other sign
//   HALVES   x · 2^-e = high + low, two f16 numbers, with one power of two for the row: 22 bits
//   FLOATS   as they are
//
// In shared memory every (row, digit) is a plane of its own, 32 bytes longer than its numbers, so that the eight planes of a
// tensor-core operand lie in different banks.
#pragma once

#include "common.cuh"

constexpr int CELL = 256;
constexpr int DIGITS = 1, NEGATED = 2, HALVES = 4, FLOATS = 8;
constexpr float LARGEST = 127 * 255 + 127;
constexpr float SMALLEST_NORMAL = 1.17549435e-38f;

struct Digits {
    uint2 high, low;  // eight columns
    float scale;
};

// 1 / sqrt(v), with a step of Newton's behind the approximation
PS_DEVICE float inverse_root(float v) {
    const float r = rsqrtf(v);
    return r * fmaf(-0.5f * v * r, r, 1.5f);
}

// Of numbers that are not negative, whose bits have their order.
PS_DEVICE float warp_largest(float v) { return bits_float(__reduce_max_sync(ALL, float_bits(v))); }

// The scale of a cell's digits, largest / LARGEST to the nearest number (one step behind a product with the inverse is enough) but not
// below the smallest normal one, and its inverse, which is finite.
PS_DEVICE float2 digit_scale(float largest) {
    const float about = largest * (1 / LARGEST), scale = fmaxf(fmaf(fmaf(-about, LARGEST, largest), 1 / LARGEST, about), SMALLEST_NORMAL);
    return {scale, __frcp_rn(scale)};
}
// v / scale = 255 · x + y
PS_DEVICE int2 digits_of(float v, float inverse) {
    const float q = __fadd_rn(__fmul_rn(v, inverse), ROUND), high = __fadd_rn(__fmul_rn(__fsub_rn(q, ROUND), 1.0f / 255), ROUND);
    const int whole = static_cast<int>(float_bits(q)) - ROUND_BITS, x = static_cast<int>(float_bits(high)) - ROUND_BITS;
    return {x, whole - 255 * x};
}

PS_DEVICE float largest_of(const float (&v)[8]) {  // of a warp's
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
    return warp_largest(largest);
}

// 256 columns of a row, eight to a lane.
PS_DEVICE Digits to_digits(const float (&v)[8], float largest) {
    const float2 scale = digit_scale(largest);
    u32 high[2] = {0, 0}, low[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int2 d = digits_of(v[i], scale.y);
        high[i / 4] |= (d.x & 255) << i % 4 * 8;
        low[i / 4] |= (d.y & 255) << i % 4 * 8;
    }
    return {{high[0], high[1]}, {low[0], low[1]}, scale.x};
}

// −1 times four signed bytes, none of them −128.
PS_DEVICE u32 negate_bytes(u32 v) { return __vsub4(0, v); }

constexpr int LOG_PIECE = 3, PIECE = 1 << LOG_PIECE;  // more rows are in pieces of eight, one behind the other

// Where the forms of `rows` rows, at most a piece, of `columns` numbers lie; columns is a multiple of 256.
struct InputPlan {
    int columns, rows, forms;
    int apart = 0;  // bytes from a piece to the next, where something lies in between

    PS_DEVICE int digit_stride() const { return columns + 32; }
    PS_DEVICE int half_stride() const { return 2 * columns + 32; }
    PS_DEVICE int float_stride() const { return 4 * columns + 32; }
    PS_DEVICE int negated_at() const { return forms & DIGITS ? 2 * rows * digit_stride() : 0; }
    PS_DEVICE int halves_at() const { return negated_at() + (forms & NEGATED ? 2 * rows * digit_stride() : 0); }
    PS_DEVICE int floats_at() const { return halves_at() + (forms & HALVES ? 2 * rows * half_stride() : 0); }
    PS_DEVICE int scales_at() const { return floats_at() + (forms & FLOATS ? rows * float_stride() : 0); }
    // [cells][8] scales of the digits, then [8] of the halves
    PS_DEVICE int bytes() const { return scales_at() + (columns / CELL + 1) * 8 * 4; }
    PS_DEVICE int piece() const { return apart ? apart : bytes(); }
};

PS_DEVICE void store_digits(char* at, const InputPlan& p, int row, int cell, int lane, const Digits& d) {
    char* planes = at + 2 * row * p.digit_stride() + cell * CELL + lane * 8;
    *reinterpret_cast<uint2*>(planes) = d.high;
    *reinterpret_cast<uint2*>(planes + p.digit_stride()) = d.low;
    if (p.forms & NEGATED) {
        planes += p.negated_at();
        *reinterpret_cast<uint2*>(planes) = {negate_bytes(d.high.x), negate_bytes(d.high.y)};
        *reinterpret_cast<uint2*>(planes + p.digit_stride()) = {negate_bytes(d.low.x), negate_bytes(d.low.y)};
    }
    float* scales = reinterpret_cast<float*>(at + p.scales_at());
    if (lane == 0) scales[cell * 8 + row] = d.scale;
}

// Rows of floats, or an image that the kernel before has made; `norm`: divided by their root mean square and multiplied with it.
struct Inputs {
    const float* x;     // [rows, stride] or null
    const float* norm;  // [width] or null
    const char* image;  // or null: all forms as they shall lie in shared memory, made by the kernel before
    int image_forms;    // the forms it holds; with groups one image follows the other, and with them one piece of rows the other
    int piece_bytes;    // from a piece to the next
    int stride, width;  // numbers in a row; columns behind them are zeros
    float eps;
};

struct Eight {
    float v[8];
};
// Out of line: instructions that are hardly ever used must not stand between those that are.
__device__ __noinline__ Eight load_last(const float* x, int at, int width) {
    Eight e;
#pragma unroll
    for (int i = 0; i < 8; i++) e.v[i] = at + i < width ? __ldcg(x + at + i) : 0.0f;
    return e;
}
// From the second-level cache: before the kernel before has ended this is not the truth yet, but it must be afterwards.
PS_DEVICE void load_eight(const float* x, int at, int width, float (&v)[8]) {
    if (at + 8 <= width) {
        const float4 a = __ldcg(reinterpret_cast<const float4*>(x + at)), b = __ldcg(reinterpret_cast<const float4*>(x + at + 4));
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        const Eight e = load_last(x, at, width);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = e.v[i];
    }
}

constexpr int SCRATCH_FLOATS = 2 * 8 * 64;  // [squares, largest][rows][cells]

PS_DEVICE void load_cell(const Inputs& in, int row, int cell, int lane, float (&v)[8]) {
    load_eight(in.x + static_cast<size_t>(row) * in.stride, cell * CELL + lane * 8, in.width, v);
}
PS_DEVICE float squares_of(const float (&v)[8]) {  // of a lane's
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) squares = fmaf(v[j], v[j], squares);
    return squares;
}
PS_DEVICE void multiply_cell(const Inputs& in, int cell, int lane, float (&v)[8]) {  // with the norm's weights
    float w[8];
    load_eight(in.norm, cell * CELL + lane * 8, in.width, w);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= w[i];
}

// v: a cell of a row, normed → halves and floats, where they are wanted.  up: the power of two of the row's halves.
PS_DEVICE void store_floating(const InputPlan& p, char* at, int row, int cell, int lane, const float (&v)[8], float up) {
    const int column = cell * CELL + lane * 8;
    if (p.forms & HALVES) {
        u32 high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = v[2 * i] * up, b = v[2 * i + 1] * up;
            const u16 ha = float_to_half(a), hb = float_to_half(b);
            high[i] = ha | static_cast<u32>(hb) << 16;
            low[i] = float_to_half(a - half_to_float(ha)) | static_cast<u32>(float_to_half(b - half_to_float(hb))) << 16;
        }
        char* plane = at + p.halves_at() + 2 * row * p.half_stride() + column * 2;
        *reinterpret_cast<uint4*>(plane) = {high[0], high[1], high[2], high[3]};
        *reinterpret_cast<uint4*>(plane + p.half_stride()) = {low[0], low[1], low[2], low[3]};
    }
    if (p.forms & FLOATS) {
        float* plane = reinterpret_cast<float*>(at + p.floats_at() + row * p.float_stride()) + column;
        *reinterpret_cast<float4*>(plane) = {v[0], v[1], v[2], v[3]};
        *reinterpret_cast<float4*>(plane + 4) = {v[4], v[5], v[6], v[7]};
    }
}

// What the whole row decides: the factor of its norm, and the power of two that brings its largest number to between 512 and
// 1024 (or whatever, for zeros).
struct RowScale {
    float factor, up, down;
};
PS_DEVICE RowScale whole_row(float mean_square, float largest, bool norm, float eps) {
    const float factor = norm ? inverse_root(mean_square + eps) : 1.0f;
    const int exponent = static_cast<int>(float_bits(largest * factor) >> 23 & 255);
    const int shift = min(max(127 + 9 - exponent, -120), 120);
    return {factor, bits_float(static_cast<u32>(127 + shift) << 23), bits_float(static_cast<u32>(127 - shift) << 23)};
}
// One warp; squares and largest of every cell of the row → the same for all lanes.
PS_DEVICE RowScale row_scale(const float* squares, const float* largest, int cells, int width, bool norm, float eps, int lane) {
    float sum = lane < cells ? squares[lane] : 0.0f, most = lane < cells ? largest[lane] : 0.0f;
    if (lane + WARP < cells) sum += squares[lane + WARP], most = fmaxf(most, largest[lane + WARP]);
    return whole_row(warp_sum(sum) / static_cast<float>(width), warp_largest(most), norm, eps);
}

// Who copies it: the planes of a piece of rows, of one group of columns.
PS_DEVICE void copy_planes(const Copiers& who, const Inputs& in, const InputPlan& p, char* at, int group, u64* bar) {
    const InputPlan from = {p.columns, p.rows, in.image_forms};
    const char* image = in.image + static_cast<size_t>(group) * from.bytes();
    const u32 digits = 2 * p.rows * p.digit_stride(), halves = 2 * p.rows * p.half_stride(), floats = p.rows * p.float_stride();
    const u32 scales = p.bytes() - p.scales_at();
    who.announce(bar, (p.forms & DIGITS ? digits : 0) + (p.forms & NEGATED ? digits : 0) + (p.forms & HALVES ? halves : 0) +
                          (p.forms & FLOATS ? floats : 0) + scales);
    if (p.forms & DIGITS) who.copy(at, image, digits, bar);
    if (p.forms & NEGATED) who.copy(at + p.negated_at(), image + from.negated_at(), digits, bar);
    if (p.forms & HALVES) who.copy(at + p.halves_at(), image + from.halves_at(), halves, bar);
    if (p.forms & FLOATS) who.copy(at + p.floats_at(), image + from.floats_at(), floats, bar);
    who.copy(at + p.scales_at(), image + from.scales_at(), scales, bar);
}
// All threads of a block: asks for them.  They are in place when `bar`, made for the block's arrivals, completes its first phase.
PS_DEVICE void fetch_image(const Inputs& in, const InputPlan& p, char* at, int group, u64* bar) {
    const Copiers all = block_copiers();
    if (!all.copies()) return;
    copy_planes(all, in, p, at, group, bar);
    all.close(bar);
}

// One warp, or without bulk copies all of a block: the same for all pieces of rows and, in a cluster, some of the columns, those of block
// `rank`.  p: of the block's columns
PS_DEVICE void fetch_columns(const Inputs& in, const InputPlan& p, char* at, int pieces, int group, int rank, int blocks, u64* bar, int lane) {
#if BULK
    const InputPlan from = {p.columns * blocks, p.rows, in.image_forms};
    const char* image = in.image + static_cast<size_t>(group) * from.bytes();
    const int planes = 2 * p.rows, scales = p.columns / CELL * PIECE * 4;
    const int bytes = planes * p.columns * ((p.forms & DIGITS ? 1 : 0) + (p.forms & NEGATED ? 1 : 0) + (p.forms & HALVES ? 2 : 0)) +
                      (p.forms & FLOATS ? p.rows * p.columns * 4 : 0) + scales + PIECE * 4;
    if (lane == 0) barrier_expect(bar, pieces * bytes);
    __syncwarp();
#pragma unroll 1
    for (int piece = 0; piece < pieces; piece++, image += in.piece_bytes, at += p.bytes()) {
        auto copy = [&](int to, int stride, int at_image, int image_stride, int size) {  // size: of a number
            bulk_copy(at + to + lane * stride, image + at_image + lane * image_stride + rank * p.columns * size, p.columns * size, bar);
        };
        if (lane < planes) {
            if (p.forms & DIGITS) copy(0, p.digit_stride(), 0, from.digit_stride(), 1);
            if (p.forms & NEGATED) copy(p.negated_at(), p.digit_stride(), from.negated_at(), from.digit_stride(), 1);
            if (p.forms & HALVES) copy(p.halves_at(), p.half_stride(), from.halves_at(), from.half_stride(), 2);
        }
        if (lane < p.rows && p.forms & FLOATS) copy(p.floats_at(), p.float_stride(), from.floats_at(), from.float_stride(), 4);
        if (lane == 0) {
            bulk_copy(at + p.scales_at(), image + from.scales_at() + rank * scales, scales, bar);
            bulk_copy(at + p.scales_at() + scales, image + from.scales_at() + blocks * scales, PIECE * 4, bar);
        }
    }
#else  // no clusters
    Inputs piece = in;
    const Copiers all = block_copiers();
#pragma unroll 1
    for (int i = 0; i < pieces; i++, piece.image += in.piece_bytes, at += p.bytes()) copy_planes(all, piece, p, at, group, bar);
    all.close(bar);
#endif
}

// Where a kernel's inputs come from: an image, rows of floats, or an image that stays in memory, because a block has no room for it.  Code that
// is never run still has to be fetched past, and most of a decode kernel's instructions run once: kernels are made for the source they have.
enum Source { IMAGE, ROWS, MEMORY };

// All threads of a block of WARPS warps: the forms of rows of floats.  Squares are added within a cell, then over the cells: an order that
// depends on neither the number of warps nor that of rows.  Digits do not wait for the norm, which goes into their scale.
// wait: until the kernel before has ended.
template <int WARPS, class Wait>
PS_DEVICE void prepare(const Inputs& in, const InputPlan& p, char* at, float* scratch, const Wait& wait) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, cells = p.columns / CELL, all = p.rows * cells;
    float* scales = reinterpret_cast<float*>(at + p.scales_at());
    float v[8], next[8], weights[8];
    int weights_of = warp % cells;  // the cell whose weights those are
    if (in.norm) load_eight(in.norm, weights_of * CELL + lane * 8, in.width, weights);
    wait();
    auto multiply = [&](int cell) {
        if (!in.norm) return;
        if (cell != weights_of) load_eight(in.norm, cell * CELL + lane * 8, in.width, weights), weights_of = cell;
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= weights[j];
    };
    if (warp < all) load_cell(in, warp / cells, warp % cells, lane, next);
#pragma unroll 1
    for (int i = warp; i < all; i += WARPS) {
        const int row = i / cells, cell = i - row * cells, after = i + WARPS;
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = next[j];
        if (after < all) load_cell(in, after / cells, after % cells, lane, next);
        const float squares = in.norm ? warp_sum(squares_of(v)) : 0.0f;
        multiply(cell);
        const float largest = largest_of(v);
        if (p.forms & DIGITS) store_digits(at, p, row, cell, lane, to_digits(v, largest));
        if (lane == 0) scratch[row * 64 + cell] = squares, scratch[512 + row * 64 + cell] = largest;
    }
    __syncthreads();
    if (!in.norm && !(p.forms & (HALVES | FLOATS))) return;  // nothing of the whole row is needed
#pragma unroll 1
    for (int i = warp; i < all; i += WARPS) {
        const int row = i / cells, cell = i - row * cells;
        const RowScale whole = row_scale(scratch + row * 64, scratch + 512 + row * 64, cells, in.width, in.norm, in.eps, lane);
        if (lane == 0 && p.forms & DIGITS) scales[cell * 8 + row] *= whole.factor;
        if (!(p.forms & (HALVES | FLOATS))) continue;
        if (lane == 0 && cell == 0) scales[cells * 8 + row] = whole.down;
        if (all > WARPS) {  // else they are those that the warp has
            load_cell(in, row, cell, lane, v);
            multiply(cell);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] *= whole.factor;
        store_floating(p, at, row, cell, lane, v, whole.up);
    }
    __syncthreads();
}
