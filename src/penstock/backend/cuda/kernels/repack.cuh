// Stored rows → cells (see penstock.backend.cuda.layouts, which defines the same in numpy).  One warp makes one cell.
//
// Floor: every byte read once and written once; 81 GB at load take 36 ms at 4.5 TB/s, far less than bringing them here.
#pragma once

#include "formats.cuh"

struct Repack {
    const u8* raw;  // [rows, row_bytes]
    u8* out;
    long long row_bytes;
    int rows, tiles, cells;
    int tile_cells, first_cell;  // cells from one tile to the next in `out`, and where this matrix starts among them
};

struct StoredRows {
    const u8* row[2];  // rows g and g + 8 of the tile, null behind the last
    long long bytes;

    // Of the tile that begins with row `first` of `count`; raw: where row 0 is
    PS_DEVICE StoredRows(const u8* raw, long long bytes, int first, int count) : bytes(bytes) {
        for (int h = 0; h < 2; h++) {
            const long long at = first + threadIdx.x % WARP / 4 + 8 * h;
            row[h] = at < count ? raw + at * bytes : nullptr;
        }
    }

    PS_DEVICE u32 byte(int half, long long at) const { return row[half] && at < bytes ? row[half][at] : 0u; }
    PS_DEVICE u32 word16(int half, long long at) const { return byte(half, at) | byte(half, at + 1) << 8; }
    PS_DEVICE u32 word32(int half, long long at) const { return word16(half, at) | word16(half, at + 2) << 16; }
};

PS_DEVICE u8* cell_at(const Repack& p, int tile, int cell, int cell_bytes) {
    return p.out + (static_cast<size_t>(tile) * p.tile_cells + p.first_cell + cell) * cell_bytes;
}

// One warp: a cell of a tile.
template <int FORMAT>
PS_DEVICE void lay_out(const StoredRows& src, int cell, u8* out) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    u32* out32 = reinterpret_cast<u32*>(out);
    u16* out16 = reinterpret_cast<u16*>(out);
    if constexpr (FORMAT == Q8_0) {
        for (int i = 0; i < STEPS; i++) {
            const long long at = (static_cast<long long>(cell) * STEPS + i) * 34;
            for (int r = 0; r < 4; r++) out32[i * 128 + lane * 4 + r] = src.word32(r % 2, at + 2 + 8 * t + r / 2 * 4);
            if (t < 2) out16[2048 + g * 16 + i * 2 + t] = static_cast<u16>(src.word16(t, at));
        }
    } else if constexpr (FORMAT == F16 || FORMAT == BF16) {
        for (int i = 0; i < 16; i++)
            for (int r = 0; r < 4; r++)
                out32[i * 128 + lane * 4 + r] =
                    src.word32(r % 2, (static_cast<long long>(cell) * CELL + i * 16 + 4 * t + r / 2 * 2) * 2);
    } else if constexpr (FORMAT == F32) {
        for (int i = 0; i < 16; i++)
            for (int r = 0; r < 8; r++)
                out32[i * 256 + lane * 8 + r] = src.word32(
                    r / 2 % 2, (static_cast<long long>(cell) * CELL + i * 16 + 4 * t + r / 4 * 2 + r % 2) * 4);
    } else if constexpr (FORMAT == IQ2_XXS) {
        const long long at = static_cast<long long>(cell) * 66;
        u32 nibbles[2] = {0, 0};
        for (int pair = 0; pair < 4; pair++) {
            u32 index4 = 0, signs = 0;
            for (int k = 0; k < 4; k++) {  // step 2 pair + k / 2, half k % 2
                const int step = 2 * pair + k / 2, half = k % 2;
                index4 |= src.byte(half, at + 2 + 8 * step + t) << 8 * k;
                const u32 word = src.word32(half, at + 6 + 8 * step), seven = word >> 7 * t & 127;
                const u32 eight = seven | (__popc(seven) & 1) << 7;
                for (int e = 0; e < 8; e++) signs |= (eight >> e & 1) << (k / 2 * 4 + e / 4 * 2 + half + e % 4 * 8);
                nibbles[half] |= (word >> 28) << 4 * step;
            }
            out32[lane * 4 + pair] = index4;
            out32[128 + lane * 4 + pair] = signs;
        }
        if (t < 2) out32[256 + g * 2 + t] = nibbles[t];
        if (t < 2) out16[544 + g * 2 + t] = static_cast<u16>(src.word16(t, at));
    } else if constexpr (FORMAT == Q2_K) {
        const long long at = static_cast<long long>(cell) * 84;
        for (int i = 0; i < STEPS; i++) {
            u32 word = 0;
            for (int r = 0; r < 4; r++) {
                const u32 four = src.word32(r % 2, at + 16 + 32 * (i / 4) + 8 * t + r / 2 * 4);
                word |= (four >> 2 * (i % 4) & 0x03030303) << 2 * r;
            }
            out32[i / 4 * 128 + lane * 4 + i % 4] = word;
            // [g][which half of a step][half][step]: lane t writes (t / 2, t % 2)
            out[1024 + g * 32 + t * 8 + i] = static_cast<u8>(src.byte(t % 2, at + 2 * i + t / 2));
        }
        out16[640 + g * 4 + t] = static_cast<u16>(src.word16(t / 2, at + 80 + t % 2 * 2));
    } else if constexpr (FORMAT == Q4_K) {
        const long long at = static_cast<long long>(cell) * 144;
        for (int i = 0; i < STEPS; i++) {
            for (int k = 0; k < 2; k++) {
                u32 word = 0;
                for (int half = 0; half < 2; half++) {
                    const u32 four = src.word32(half, at + 16 + 32 * (i / 2) + 8 * t + 4 * k);
                    word |= (four >> 4 * (i % 2) & 0x0f0f0f0f) << 4 * half;
                }
                out32[i / 2 * 128 + lane * 4 + i % 2 * 2 + k] = word;
            }
            if (t < 2) {
                const long long s = at + 4;
                const u32 scale = i < 4 ? src.byte(t, s + i) & 63
                                        : (src.byte(t, s + i + 4) & 15) | src.byte(t, s + i - 4) >> 6 << 4;
                const u32 least = i < 4 ? src.byte(t, s + i + 4) & 63
                                        : src.byte(t, s + i + 4) >> 4 | src.byte(t, s + i) >> 6 << 4;
                out[2048 + g * 32 + t * 16 + i] = static_cast<u8>(scale);
                out[2048 + g * 32 + t * 16 + 8 + i] = static_cast<u8>(least);
            }
        }
        out16[1152 + g * 4 + t] = static_cast<u16>(src.word16(t / 2, at + t % 2 * 2));
    } else if constexpr (FORMAT == Q6_K) {
        const long long at = static_cast<long long>(cell) * 210;
        for (int i = 0; i < STEPS; i++) {
            const int side = i / 4, quarter = i % 4;  // 128 columns each, 32 each
            for (int r = 0; r < 4; r++) {
                const int half = r % 2, column = 8 * t + r / 2 * 4;
                const u32 low = src.word32(half, at + side * 64 + quarter % 2 * 32 + column) >> quarter / 2 * 4 & 0x0f0f0f0f;
                const u32 high = src.word32(half, at + 128 + side * 32 + column) >> quarter * 2 & 0x03030303;
                out32[i * 128 + lane * 4 + r] = __vsub4(low | high << 4, 0x20202020);
            }
        }
        for (int k = 0; k < 8; k++)  // scales [g][half][16]: lane t writes eight of half t / 2
            out[4096 + g * 32 + t * 8 + k] = static_cast<u8>(src.byte(t / 2, at + 192 + t % 2 * 8 + k));
        if (t < 2) out16[2176 + g * 2 + t] = static_cast<u16>(src.word16(t, at + 208));
    } else if constexpr (FORMAT == FP8) {
        for (int i = 0; i < 16; i++)
            for (int r = 0; r < 4; r++) {
                const long long at = static_cast<long long>(cell) * 258 + i / 8 * 129 + 1 + i % 8 * 16 + 4 * t + r / 2 * 2;
                out16[i * 128 + lane * 4 + r] = static_cast<u16>(src.word16(r % 2, at));
            }
        out[4096 + g * 4 + t] = static_cast<u8>(src.byte(t / 2, static_cast<long long>(cell) * 258 + t % 2 * 129));
    } else if constexpr (FORMAT == MXFP4) {
        for (int i = 0; i < STEPS; i++) {
            const long long at = (static_cast<long long>(cell) * STEPS + i) * 17;
            for (int k = 0; k < 2; k++) {
                u32 word = 0;
                for (int half = 0; half < 2; half++)
                    for (int b = 0; b < 4; b++) {
                        const int column = 8 * t + 4 * k + b;
                        const u32 code = src.byte(half, at + 1 + column % 16) >> column / 16 * 4 & 15;
                        word |= code << (half * 16 + b * 4);
                    }
                out32[i / 2 * 128 + lane * 4 + i % 2 * 2 + k] = word;
            }
            if (t < 2) out[2048 + g * 16 + t * 8 + i] = static_cast<u8>(src.byte(t, at));
        }
    }
}

// Of FP4 whose scales lie apart: two neighbours to a byte, the first in the low half → a cell of MXFP4.
PS_DEVICE void lay_out_fp4(const StoredRows& codes, const StoredRows& scales, int cell, u8* out) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    u32* out32 = reinterpret_cast<u32*>(out);
    for (int i = 0; i < STEPS; i++) {
        const long long block = static_cast<long long>(cell) * STEPS + i;
        u32 words[2] = {0, 0};
        for (int half = 0; half < 2; half++) {
            for (int pair = 0; pair < 4; pair++)  // columns 8 t + 2 pair and the next
                words[pair / 2] |= codes.byte(half, block * 16 + 4 * t + pair) << (half * 16 + pair % 2 * 8);
            if (t == half) out[2048 + g * 16 + half * 8 + i] = static_cast<u8>(scales.byte(half, block));
        }
        for (int k = 0; k < 2; k++) out32[i / 2 * 128 + lane * 4 + i % 2 * 2 + k] = words[k];
    }
}

// index: of the cell
template <int FORMAT>
PS_DEVICE void repack(const Repack& p, long long index) {
    if (index >= static_cast<long long>(p.tiles) * p.cells) return;
    const int tile = static_cast<int>(index / p.cells), cell = static_cast<int>(index % p.cells);
    lay_out<FORMAT>(StoredRows(p.raw, p.row_bytes, tile * 16, p.rows), cell, cell_at(p, tile, cell, cell_bytes(FORMAT)));
}
