// What the attention of many rows (prefill_attention.cu) is told, and where its results go.
#pragma once

#include "keys.cuh"
#include "mma.cuh"

constexpr int DIM = 512, HEADS = 64, KEYS = 32;
constexpr int STAGE_BYTES = KEYS * DIM * 2, STAGE_BLOCK = KEYS * 128;  // of keys, and of 64 dims of them
constexpr float UP = 16;  // outputs are made so much larger: they are as large as keys at most

struct AttendRows {
    const u16* q;          // [rows, heads, 512] halfs before norm and rotation
    const float* q_scales;  // [rows]: what they have to be multiplied with, and q_up
    Keys keys;
    const float2* turns;  // [rows, rope / 2]
    const float* sinks;   // [heads]
    u16* out;             // [rows, heads · 512] halfs, UP times as large, columns in the order of `input_place`
    int heads, rows, rope;
    float eps, q_up;
};

PS_DEVICE float exp2_of(float v) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(v));
    return d;
}
PS_DEVICE u32 to_halves(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// What a warp has of sixteen heads, their values of one half of the dims, to where it belongs.  head: of row g, the other is head + 8;
// o: numbers 4j … are dims 8j + 2t, + 1 of the half
PS_DEVICE void store_heads(const AttendRows& p, int row, int head, int half, const float (&o)[DIM / 4], const float (&scale)[2]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < DIM / 64; b++) {  // 32 dims
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = o[16 * b + 4 * i + 2 * h] * scale[h], y = o[16 * b + 4 * i + 2 * h + 1] * scale[h];
                const int turned = half * (DIM / 4) + b * 16 + i * 4 + t - (DIM - p.rope) / 2;
                if (turned >= 0) {  // back by the query's position
                    const float2 turn = p.turns[static_cast<size_t>(row) * (p.rope / 2) + turned];
                    const float a = x;
                    x = a * turn.x + y * turn.y, y = y * turn.x - a * turn.y;
                }
                words[i] = to_halves(x, y);
            }
            if (head + 8 * h < p.heads) {
                u16* out = p.out + (static_cast<size_t>(row) * p.heads + head + 8 * h) * DIM + half * (DIM / 2) + b * 32 + t * 8;
                *reinterpret_cast<uint4*>(out) = {words[0], words[1], words[2], words[3]};
            }
        }
    }
}
