// Compares the products of every instruction set this processor has with the plain ones, bit by bit.
//
//   cmake --build build/native --target native_selfcheck && build/native/native_selfcheck
//
// Needs no Python: built for another processor, it runs there or under an emulator.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "inputs.h"

namespace {

struct Format {
    const char* name;
    i64 type, block, bytes;
    std::vector<int> halves;  // where blocks keep float16 scales
};

const Format FORMATS[] = {
    {"F32", W_F32, 1, 4, {}},         {"F16", W_F16, 1, 2, {}},
    {"BF16", W_BF16, 1, 2, {}},       {"FP8", W_FP8, 1, 1, {}},
    {"Q8_0", W_Q8_0, 32, 34, {0}},    {"MXFP4", W_MXFP4, 32, 17, {}},
    {"FP4", W_FP4, 32, 16, {}},       {"Q4_K", W_Q4_K, 256, 144, {0, 2}},
    {"Q2_K", W_Q2_K, 256, 84, {80, 82}}, {"IQ2_XXS", W_IQ2_XXS, 256, 66, {0}},
};

// 0: zeros, 1: all bits set, else random; scales are ordinary numbers of either sign.
std::vector<u8> weights(const Format& f, i64 rows, i64 columns, int pattern, std::mt19937& random) {
    std::vector<u8> out(static_cast<std::size_t>(rows * columns / f.block * f.bytes));
    for (u8& byte : out) byte = pattern == 0 ? 0 : pattern == 1 ? 255 : static_cast<u8>(random());
    for (std::size_t at = 0; at < out.size(); at += static_cast<std::size_t>(f.bytes)) {
        u8* block = &out[at];
        for (int half : f.halves) block[half + 1] = static_cast<u8>((random() & 0x83) | 0x24);
        if (f.type == W_F32 || f.type == W_F16 || f.type == W_BF16) block[f.bytes - 1] &= 0xbf;  // no infinity, no NaN
        if (f.type == W_FP8 && (block[0] & 127) == 127) block[0] = 0x7e;
        if (f.type == W_MXFP4) block[0] = static_cast<u8>(100 + random() % 40);
    }
    return out;
}

std::vector<float> multiply(const Kernels& kernels, const ps_weight& w, const std::vector<float>& x, i64 rows) {
    const i64 blocks = blocks_of(w.columns);
    std::vector<i16> values[ORDERS];
    for (auto& order : values) order.resize(static_cast<std::size_t>(rows * blocks * BLOCK));
    std::vector<float> scales(static_cast<std::size_t>(rows * blocks)), sums(scales.size() * SUMS);
    for (i64 r = 0; r < rows; r++) {
        i16* row[ORDERS];
        for (int order = 0; order < ORDERS; order++) row[order] = &values[order][static_cast<std::size_t>(r * BLOCK)];
        kernels.quantise(&x[static_cast<std::size_t>(r * w.columns)], w.columns, row, rows * BLOCK,
                         &scales[static_cast<std::size_t>(r * blocks)],
                         &sums[static_cast<std::size_t>(r * blocks * SUMS)]);
    }
    const Inputs in = {x.data(),      w.columns,   w.columns, blocks, rows * BLOCK,
                       {values[NATURAL].data(), values[SPLIT].data(), values[PLANES].data()},
                       scales.data(), sums.data(), nullptr,   rows};
    std::vector<float> out(static_cast<std::size_t>(rows * w.rows));
    Scratch<For::PIECE> scratch(kernels.scratch_bytes);
    kernels.multiply(w, 0, w.rows, in, out.data(), w.rows, scratch.memory());
    return out;
}

int check(const Kernels& kernels, const Format& f) {
    std::mt19937 random(1);
    int wrong = 0;
    const i64 out_rows = 21;
    for (i64 columns : {f.block == 1 ? i64{301} : f.block, f.block == 256 ? i64{1024} : i64{1120}})
        for (int pattern = 0; pattern < 5; pattern++) {
            const std::vector<u8> data = weights(f, out_rows, columns, pattern, random);
            std::vector<u8> scale(static_cast<std::size_t>(out_rows * (columns / 32 + 1)));
            for (u8& byte : scale) byte = static_cast<u8>(pattern == 4 ? random() % 240 : 110 + random() % 30);
            const ps_weight w = {data.data(), scale.data(), f.type, out_rows, columns, 0, nullptr, 0, nullptr};
            for (i64 rows : {1, 2, 3, 4, 7, 64}) {
                std::vector<float> x(static_cast<std::size_t>(rows * columns));
                for (float& v : x) v = pattern == 3 ? 1.0f : std::normal_distribution<float>()(random);
                const auto a = multiply(kernels, w, x, rows), b = multiply(scalar_kernels(), w, x, rows);
                wrong += std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0;
            }
        }
    return wrong;
}

}  // namespace

int main() {
    int wrong = 0;
    for (const char* name : {"avx2", "avx512", "neon", "neon_dot"})
        if (const Kernels* kernels = kernels_named(name))
            for (const Format& format : FORMATS) {
                const int found = check(*kernels, format);
                std::printf("%-8s %-8s %s\n", name, format.name, found ? "DIFFERS" : "same bits");
                wrong += found;
            }
    return wrong != 0;
}
