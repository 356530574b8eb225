// How encoding is cut into pieces for the threads.
#include "encode.h"

#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "scratch.h"
#include "threads.h"

namespace {

constexpr i64 PIECE = 1 << 16;  // weights in a piece, about

i64 encoded_bytes(i64 type, i64 columns) {
    switch (type) {
        case E_F32: return columns * 4;
        case E_F16:
        case E_BF16: return columns * 2;
        case E_Q8_0: return columns / 32 * 34;
        case E_MXFP4: return columns / 32 * 17;
        case E_Q4_0:
        case E_IQ4_NL: return columns / 32 * 18;
        case E_Q5_0: return columns / 32 * 22;
        case E_Q5_1: return columns / 32 * 24;
        case E_Q2_K: return columns / 256 * 84;
        case E_Q3_K: return columns / 256 * 110;
        case E_Q4_K: return columns / 256 * 144;
        case E_Q5_K: return columns / 256 * 176;
        case E_Q6_K: return columns / 256 * 210;
        default: return columns / 256 * 66;
    }
}

// Byte j of a block holds weights j and j + 16 instead of 2j and 2j + 1.  False where a scale is NaN, for which MXFP4 has
// no code.
bool repack(const ps_weight& w, i64 row, u8* out) {
    const i64 groups = w.columns / 32;
    const u8 *p = static_cast<const u8*>(w.data) + row * groups * 16, *scale = static_cast<const u8*>(w.scale) + row * groups;
    bool good = true;
    for (i64 g = 0; g < groups; g++, p += 16, out += 17) {
        good &= scale[g] != 255;
        out[0] = scale[g];
        for (int i = 0; i < 8; i++) {
            out[1 + 2 * i] = static_cast<u8>((p[i] & 15) | p[i + 8] << 4);
            out[2 + 2 * i] = static_cast<u8>(p[i] >> 4 | (p[i + 8] & 0xf0));
        }
    }
    return good;
}

}  // namespace

const Encoders& encoders_of(const Kernels& kernels) {
#if defined(PENSTOCK_AVX512)
    if (&kernels.steps == &avx512_steps) return avx512_encoders();
#endif
#if defined(PENSTOCK_AVX2)
    if (&kernels.steps == &avx2_steps) return avx2_encoders();
#endif
    (void)kernels;
    return plain_encoders();
}

i64 ps_encode(const ps_weight* weight, i64 first, i64 last, i64 type, const float* importance, float limit, void* out,
              i64 threads) {
    const Encoders& own = encoders_of(kernels());
    const i64 columns = weight->columns, bytes = encoded_bytes(type, columns);
    const i64 rows = last - first, step = std::max<i64>(1, PIECE / columns);
    std::atomic<i64> bad{last};
    parallel_for((rows + step - 1) / step, threads, [&](i64 piece) {
        Scratch<For::PIECE> scratch(columns * static_cast<i64>(sizeof(float)));
        float* x = at<float>(scratch.memory(), 0);
        for (i64 i = piece * step; i < std::min(rows, (piece + 1) * step); i++) {
            u8* to = static_cast<u8*>(out) + i * bytes;
            bool good;
            if (weight->type == W_FP4 && type == E_MXFP4) {
                good = repack(*weight, first + i, to);
            } else {
                own.decode(*weight, first + i, x);
                good = limit < 0 || own.within(x, columns, limit);
                if (good) own.encode(type, x, importance, columns, to);
            }
            if (good) continue;
            i64 found = bad.load();
            while (first + i < found && !bad.compare_exchange_weak(found, first + i)) {
            }
        }
    });
    return bad < last ? bad.load() : -1;
}
