// The encoders of one instruction set: this file is compiled once for each, and every one gives the same bytes.
#include "encode/affine.h"
#include "encode/decode.h"
#include "encode/iq2_xxs.h"
#include "encode/plain.h"
#include "encode/symmetric.h"

namespace {

void decode(const ps_weight& weight, i64 row, float* out) { decode_row(weight, row, out); }

bool within(const float* x, i64 columns, float limit) { return within_limit(x, columns, limit); }

void encode(i64 type, const float* x, const float* w, i64 n, u8* out) {
    switch (type) {
        case E_F32: return encode_f32(x, n, out);
        case E_F16: return encode_f16(x, n, out);
        case E_BF16: return encode_bf16(x, n, out);
        case E_Q8_0: return by_blocks<32, 34, encode_q8_0>(x, w, n, out);
        case E_MXFP4: return by_blocks<32, 17, encode_mxfp4>(x, w, n, out);
        case E_Q4_0: return by_blocks<32, 18, encode_q4_0>(x, w, n, out);
        case E_Q5_0: return by_blocks<32, 22, encode_q5_0>(x, w, n, out);
        case E_Q5_1: return by_blocks<32, 24, encode_q5_1>(x, w, n, out);
        case E_IQ4_NL: return by_blocks<32, 18, encode_iq4_nl>(x, w, n, out);
        case E_Q2_K: return by_blocks<256, 84, encode_q2_k>(x, w, n, out);
        case E_Q3_K: return by_blocks<256, 110, encode_q3_k>(x, w, n, out);
        case E_Q4_K: return by_blocks<256, 144, encode_q4_k>(x, w, n, out);
        case E_Q5_K: return by_blocks<256, 176, encode_q5_k>(x, w, n, out);
        case E_Q6_K: return by_blocks<256, 210, encode_q6_k>(x, w, n, out);
        case E_IQ2_XXS: return by_blocks<256, 66, encode_iq2_xxs>(x, w, n, out);
    }
}

constexpr Encoders ENCODERS = {decode, within, encode};

}  // namespace

#if defined(PENSTOCK_ISA_AVX512_VNNI)  // for avx512 too
const Encoders& avx512_encoders() { return ENCODERS; }
#elif defined(PENSTOCK_ISA_AVX2)
const Encoders& avx2_encoders() { return ENCODERS; }
#else
const Encoders& plain_encoders() { return ENCODERS; }
#endif
