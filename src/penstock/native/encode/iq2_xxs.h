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

// Sixteen entries at a time: what the widest registers hold.
constexpr int WIDE = 16;
typedef float wf __attribute__((vector_size(64)));
typedef std::int32_t wi __attribute__((vector_size(64)));

PS_INLINE wf load_wide(const float* p) {
    wf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

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
    alignas(64) float ag[ENTRIES], gg[ENTRIES];  // 2 Σ w a g, Σ w g²
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
        for (int entry = 0; entry < ENTRIES; entry += WIDE) {
            wf a{}, g{};
            for (int k = 0; k < 8; k++) {
                a += (2.0f * wa[k]) * load_wide(CODEBOOK.value[k] + entry);
                g += w[k] * load_wide(CODEBOOK.square[k] + entry);
            }
            std::memcpy(ag + entry, &a, sizeof a);
            std::memcpy(gg + entry, &g, sizeof g);
        }
    }

    // The best of the codebook at a scale, by what it takes off the error over the scale.  An entry's number replaces the
    // last bits of that, so that the largest says whose it is: what differs by less than 2^-15 counts as equal.
    PS_INLINE int look_up(float scale) const {
        wf most = wf{} - INFINITY;
        wi entry = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        for (int i = 0; i < ENTRIES; i += WIDE, entry += WIDE) {
            const wf gain = load_wide(ag + i) - scale * load_wide(gg + i);
            const wf named = bits<wf>((bits<wi>(gain) & ~(ENTRIES - 1)) | entry);
            most = named > most ? named : most;
        }
        float lanes[WIDE];
        std::memcpy(lanes, &most, sizeof most);
        for (int half = WIDE / 2; half > 0; half /= 2)
            for (int i = 0; i < half; i++) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
        return bits<std::int32_t>(lanes[0]) & (ENTRIES - 1);
    }
};

struct Lookup {
    int entry[4];
    float ag, gg;  // of all four
    PS_INLINE float gain(float scale) const { return scale * (ag - scale * gg); }
    PS_INLINE float best_scale() const { return 0.5f * ag * inverse(gg); }
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
    for (const float part : {0.6f, 0.8f, 1.0f}) {
        float scale = part * top / 43.0f;
        for (int round = 0; round < 2; round++) {
            const Lookup found = look_up(group, scale);
            scale = found.best_scale();
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
    for (int round = 0; round < 2 && tried_d > 0; round++) {
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
        tried_d = 4.0f * xa * inverse(aa);
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
