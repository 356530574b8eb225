// IQ2_XXS: eight groups of four vectors of eight weights.  A vector is one of 256 from the codebook, with signs of which
// an even number is negative; a group has a small odd integer for a scale.
//
// With a = |x|, a vector g of the codebook at scale s takes s (2 Σ w a g − s Σ w g²) off the error.  The two sums are made
// once for every vector and all of the codebook; then each scale that is tried is looked up in all of it, and nothing
// that might be best is left out.
#pragma once

#include "../formats/iq2_xxs_grid.h"
#include "common.h"

namespace {

constexpr int ENTRIES = 256;

struct Codebook {
    alignas(64) float value[8][ENTRIES], square[8][ENTRIES];  // by component
    constexpr Codebook() : value(), square() {
        for (int entry = 0; entry < ENTRIES; entry++) {
            int code = iq2_xxs::CODES[entry];
            for (int k = 0; k < 8; k++, code /= 3) {
                const float level = code % 3 == 0 ? 8.0f : code % 3 == 1 ? 25.0f : 43.0f;
                value[k][entry] = level;
                square[k][entry] = level * level;
            }
        }
    }
};
constexpr Codebook CODEBOOK;

// A vector and how well each of the codebook goes with it.
struct Vector {
    alignas(64) float ag[ENTRIES], gg[ENTRIES];  // Σ w a g, Σ w g²
    int signs;                                   // a bit for each, the eighth too

    PS_INLINE void prepare(const float* x, const float* w) {
        float wa[8];
        int weakest = 0, negative = 0;
        signs = 0;
        for (int k = 0; k < 8; k++) {
            wa[k] = w[k] * magnitude(x[k]);
            if (wa[k] < wa[weakest]) weakest = k;
            if (x[k] < 0) {
                signs |= 1 << k;
                negative++;
            }
        }
        if (negative % 2) {  // the sign that matters least is wrong
            signs ^= 1 << weakest;
            wa[weakest] = -wa[weakest];
        }
        for (int entry = 0; entry < ENTRIES; entry += LANES) {
            vf a{}, g{};
            for (int k = 0; k < 8; k++) {
                a += wa[k] * load(CODEBOOK.value[k] + entry);
                g += w[k] * load(CODEBOOK.square[k] + entry);
            }
            store(ag + entry, a);
            store(gg + entry, g);
        }
    }

    // The best of the codebook at a scale.
    PS_INLINE int look_up(float scale) const {
        const vf twice = splat(2.0f * scale), square = splat(scale * scale);
        vf most = splat(-INFINITY);
        vi where = {}, entry = {0, 1, 2, 3, 4, 5, 6, 7};
        for (int i = 0; i < ENTRIES; i += LANES, entry += 8) {
            const vf gain = twice * load(ag + i) - square * load(gg + i);
            const vi better = gain > most;
            most = better ? gain : most;
            where = better ? entry : where;
        }
        int best = 0;
        for (int lane = 1; lane < LANES; lane++)
            if (most[lane] > most[best] || (most[lane] == most[best] && where[lane] < where[best])) best = lane;
        return where[best];
    }
};

struct Lookup {
    int entry[4];
    float ag, gg;  // of all four
    PS_INLINE float gain(float scale) const { return scale * (2.0f * ag - scale * gg); }
};

PS_INLINE Lookup look_up(const Vector* group, float scale) {
    Lookup found{};
    for (int v = 0; v < 4; v++) {
        found.entry[v] = group[v].look_up(scale);
        found.ag += group[v].ag[found.entry[v]];
        found.gg += group[v].gg[found.entry[v]];
    }
    return found;
}

// The best scale of a group by itself.
PS_INLINE float fit_group(const float* x, const Vector* group) {
    float top = 0;
    for (int i = 0; i < 32; i++) top = magnitude(x[i]) > top ? magnitude(x[i]) : top;
    float best = 0, most = 0;
    for (const float part : {0.5f, 0.68f, 0.86f, 1.04f}) {
        float scale = part * top / 43.0f;
        for (int round = 0; round < 3; round++) {
            const Lookup found = look_up(group, scale);
            scale = found.ag * inverse(found.gg);
            if (!(scale > 0)) break;
            if (const float gain = found.gain(scale); gain > most) {
                most = gain;
                best = scale;
            }
        }
    }
    return best;
}

PS_INLINE float odd(float steps) { return clamp(2.0f * nearest((steps - 1.0f) * 0.5f) + 1.0f, 1, 31); }

PS_INLINE void encode_iq2_xxs(const float* x, const float* w, u8* out) {
    Vector vectors[32];
    float own[8], widest = 0;
    for (int v = 0; v < 32; v++) vectors[v].prepare(x + 8 * v, w + 8 * v);
    for (int g = 0; g < 8; g++) {
        own[g] = fit_group(x + 32 * g, vectors + 4 * g);
        widest = own[g] > widest ? own[g] : widest;
    }
    float d = 0, steps[8] = {1, 1, 1, 1, 1, 1, 1, 1}, most = -INFINITY, tried_d = as_f16_up(8.0f * widest / 31.0f);
    Lookup chosen[8] = {};
    for (int round = 0; round < 3 && tried_d > 0; round++) {
        const float unit = as_f16(tried_d) * 0.125f;
        Lookup found[8];
        float own_steps[8], gain = 0, aa = 0, xa = 0;
        for (int g = 0; g < 8; g++) {
            const float middle = odd(own[g] * inverse(unit));
            float most_here = -INFINITY;
            for (int next = -1; next <= 1; next++) {
                const float n = middle + 2.0f * static_cast<float>(next);
                if (n < 1 || n > 31) continue;
                const Lookup tried = look_up(vectors + 4 * g, unit * n);
                if (const float here = tried.gain(unit * n); here > most_here) {
                    most_here = here;
                    found[g] = tried;
                    own_steps[g] = n;
                }
            }
            gain += most_here;
            xa += own_steps[g] * found[g].ag;
            aa += own_steps[g] * own_steps[g] * found[g].gg;
        }
        if (gain > most) {
            most = gain;
            d = as_f16(tried_d);
            std::memcpy(steps, own_steps, sizeof steps);
            std::memcpy(chosen, found, sizeof chosen);
        }
        tried_d = 8.0f * xa * inverse(aa);
    }
    put_u16(out, to_f16(d));
    for (int g = 0; g < 8; g++) {
        u32 word = static_cast<u32>(static_cast<int>(steps[g]) / 2) << 28;
        for (int v = 0; v < 4; v++) {
            out[2 + 8 * g + v] = static_cast<u8>(chosen[g].entry[v]);
            word |= static_cast<u32>(vectors[4 * g + v].signs & 127) << 7 * v;
        }
        std::memcpy(out + 6 + 8 * g, &word, 4);
    }
}

}  // namespace
