// What the products of many rows (prefill_product.cu) are told, who does which part, and what becomes of the sums.
#pragma once

#include "unpack.cuh"

#ifndef WEIGHT_FORMAT
#define WEIGHT_FORMAT Q8_0
#endif
#ifndef GATE_UP  // gate and up tile by tile, and the activation behind them
#define GATE_UP 0
#endif

using Weights = Unpack<WEIGHT_FORMAT>;

// Of weights a block has these tiles of 16 rows at a time; of inputs up to MAX_N, 64 columns (BLOCK) at a time.
constexpr int TILES = !WARPGROUPS && WEIGHT_FORMAT == F32 ? 8 : 16;
constexpr int BLOCK = 64, MAX_N = 128, X_BYTES = MAX_N * BLOCK * 2;
constexpr int GRID = WEIGHT_FORMAT == IQ2_XXS ? HALF_GRID_BYTES : 0;

// Some items that one matrix sees: rows of inputs by way of `gather`, or directly.
struct Tile {
    int matrix, first, count;
};

// A matrix, or several of one shape one behind the other, and what comes of it.
struct Segment {
    const u8* weights;  // [matrices, tiles, cells (twice if paired), bytes]
    float* out;         // [items, stride], or null:
    u16* halves;        // [items, stride] the same as halfs, without the row's scale and divided by HALF_SCALE; or null:
    u16* acts;          // [items, stride] halfs in the order of `input_place`: swiglu(gate, up) · act_up
    int tiles, rows, stride, apart;  // apart: numbers from one matrix's outputs to the next one's
};
constexpr int MAX_SEGMENTS = 8;
constexpr float HALF_SCALE = 32;

struct Product {
    Segment segments[MAX_SEGMENTS];
    const u16* x;         // [planes, rows, x_stride] halfs, columns in the order of `input_place`
    const float* scales;  // of row r for matrix m at r · scale_stride + m · scale_matrix, or null: x_scale for all
    const int* gather;    // [items] or null
    const Tile* tiles;    // or null: every matrix sees all `items`, `each` at a time
    const int* tile_count;
    const float* factors;  // [items] or null: what results are multiplied with
    const u8* grid;        // of IQ2_XXS
    long long plane;       // halfs from a plane of x to the next
    int x_stride, x_matrix;      // halfs from a row to the next, and from one matrix's columns to the next one's
    int scale_stride, scale_matrix;
    int count, matrices, cells, passes, items, each, stages;  // count: of segments
    float x_scale, limit, act_up;
};

// Inputs of a pass: floats have two planes of weights and of inputs, of which three products count.
PS_DEVICE int plane_of(int pass) { return WEIGHT_FORMAT == F32 ? pass >> 1 : pass; }

// What a block does: tile by tile of inputs, and for each all rows of all segments.
struct Schedule {
    const Product& p;
    int units = 0, tiles;  // blocks' shares of the weights' rows; tiles of inputs
    PS_DEVICE Schedule(const Product& p) : p(p) {
        for (int s = 0; s < p.count; s++) units += units_of(s);
        tiles = p.tiles ? *p.tile_count : p.matrices * ((p.items + p.each - 1) / p.each);
    }
    PS_DEVICE int units_of(int segment) const {
        const int own = GATE_UP ? TILES / 2 : TILES;
        return (p.segments[segment].tiles + own - 1) / own;
    }
    PS_DEVICE int count() const { return units * tiles; }
    PS_DEVICE Tile tile(int work) const {
        const int index = work / units;
        if (p.tiles) return p.tiles[index];
        const int chunks = (p.items + p.each - 1) / p.each, first = index % chunks * p.each;
        return {index / chunks, first, min(p.each, p.items - first)};
    }
    // Which segment, and which of its shares
    PS_DEVICE int2 unit(int work) const {
        int2 found = {0, work % units};
        for (; found.y >= units_of(found.x); found.x++) found.y -= units_of(found.x);
        return found;
    }
};

// What the results of the tile's items are to be multiplied with: lane l has items l, l + 32 ….
template <int N>
struct ItemScales {
    float v[(N + WARP - 1) / WARP];
    PS_DEVICE void load(const Product& p, const Tile& tile) {
#pragma unroll
        for (int i = 0; i < (N + WARP - 1) / WARP; i++) {
            const int item = tile.first + min(static_cast<int>(threadIdx.x) % WARP + WARP * i, tile.count - 1);
            const size_t row = p.gather ? p.gather[item] : item;
            v[i] = Weights::down * (p.factors ? p.factors[item] : 1.0f) *
                   (p.scales ? p.scales[row * p.scale_stride + static_cast<size_t>(tile.matrix) * p.scale_matrix] : p.x_scale);
        }
    }
    // Of item 8 j + 2 t + e
    PS_DEVICE float of(int j, int t, int e) const { return __shfl_sync(ALL, v[j / 4], j % 4 * 8 + 2 * t + e); }
};

// The sums of one warp's sixteen rows: number `own` of the block's.
template <int N>
PS_DEVICE void store(const Product& p, const Tile& tile, int2 unit, int own, const ItemScales<N>& scales, const float (&acc)[N / 2]) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const Segment& segment = p.segments[unit.x];
    if (!GATE_UP) {
        const int feature = (unit.y * TILES + own) * 16 + g;
        float* out = segment.out + static_cast<size_t>(tile.first + 2 * t) * segment.stride + static_cast<size_t>(tile.matrix) * segment.apart + feature;
        const bool rows[2] = {feature < segment.rows, feature + 8 < segment.rows};
        if (segment.halves) {  // lanes of neighbouring rows exchange numbers, so that each has two of one item
            u16* halves = segment.halves + static_cast<size_t>(tile.first + 2 * t + g % 2) * segment.stride +
                          static_cast<size_t>(tile.matrix) * segment.apart + (feature & ~1);
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float a = acc[4 * j + 2 * h] * (Weights::down / HALF_SCALE), b = acc[4 * j + 2 * h + 1] * (Weights::down / HALF_SCALE);
                    const float other = __shfl_xor_sync(ALL, g % 2 ? a : b, 4);
                    if (8 * j + 2 * t + g % 2 < tile.count && rows[h])  // rows are whole tiles, or an even number
                        *reinterpret_cast<u32*>(halves + static_cast<size_t>(8 * j) * segment.stride + 8 * h) =
                            g % 2 ? to_halves(other, b) : to_halves(a, other);
                }
            return;
        }
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float scale = scales.of(j, t, e);
                if (8 * j + 2 * t + e >= tile.count) continue;
                float* to = out + static_cast<size_t>(8 * j + e) * segment.stride;
                if (rows[0]) to[0] = acc[4 * j + e] * scale;
                if (rows[1]) to[8] = acc[4 * j + 2 + e] * scale;
            }
        return;
    }
    // Row g is a gate and row g + 8 its up.  Lanes of neighbouring rows exchange numbers, so that each has two of one item.
    const int pair = unit.y * (TILES / 2) + own / 2, column = pair % 2 * 16 + own % 2 * 8 + g / 2 * 2;
    u16* out = segment.acts + static_cast<size_t>(tile.first + 2 * t + g % 2) * segment.stride + pair / 2 * STEP + input_place(column);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float v[2];  // of items 2t, 2t + 1
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float scale = scales.of(j, t, e), gate = fminf(acc[4 * j + e] * scale, p.limit);
            const float up = fminf(fmaxf(acc[4 * j + 2 + e] * scale, -p.limit), p.limit);
            v[e] = __fdividef(gate, 1.0f + __expf(-gate)) * up * p.act_up;
        }
        const float other = __shfl_xor_sync(ALL, g % 2 ? v[0] : v[1], 4);
        if (8 * j + 2 * t + g % 2 < tile.count && pair < segment.tiles)
            *reinterpret_cast<u32*>(out + static_cast<size_t>(8 * j) * segment.stride) = g % 2 ? to_halves(other, v[1]) : to_halves(v[0], other);
    }
}

// The narrowest product that takes all inputs of a tile.
template <class Multiplier, class... Given>
PS_DEVICE void by_width(int count, Multiplier& work, const Given&... given) {
    if (count <= 16) work.template run<16>(given...);
    else if (count <= 32) work.template run<32>(given...);
    else if (count <= 48) work.template run<48>(given...);
    else if (count <= 64) work.template run<64>(given...);
    else if (count <= 80) work.template run<80>(given...);
    else if (count <= 96) work.template run<96>(given...);
    else if (count <= 112) work.template run<112>(given...);
    else work.template run<128>(given...);
}
