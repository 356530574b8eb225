// From a row of logits to its next token, as engine/sampling.py chooses it: penalties and bias, what a grammar allows, temperature,
// top-k, top-p, min-p, one draw; and the log of the sum that log-probabilities are measured by.
//
// Floor: 129,280 floats a row, 0.5 MB, in L2; a pass over them takes one block about 5 µs, and there are three for a greedy token and
// ten more at most.  Weights are the CPU's floats to the bit.  They are added as whole multiples of 2^-44, so no order of adding
// matters: the same logits and the same chance give the same token.
#include "common.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / WARP;

struct Edit {
    int id, repeated;  // repeated: the repetition penalty applies
    float add, pad;
    double subtract;
};

struct Choice {
    const float* logits;  // [vocabulary]
    const Edit* edits;
    const u32* mask;  // bits of the tokens that are allowed, or null
    double top_p, chance;
    int edit_count, top_k;    // top_k 0: all
    float factor, min_p;      // factor: 1 / temperature; 0: greedy
    float repetition, pad;
};

struct Chosen {
    int token;      // −1 where a logit is NaN
    float logit;    // its own, before anything was done to it
    float highest;  // of all, before
    float best;     // of all, after
    double total;   // Σ e^(logit − highest), before
};

struct Sample {
    const Choice* choices;  // [rows]
    float* scratch;         // [rows, vocabulary]
    Chosen* chosen;         // [rows], perhaps in the host's memory
    int* tokens;            // [rows], of which a step can be made: 0 where there is none
    long long vocabulary;
};

// The CPU's (native/simd.h), to the bit.
PS_DEVICE float exponential(float x) {
    const float t = fminf(fmaxf(x, -104.0f), 89.0f);
    float n = fmaf(t, 1.44269504088896341f, 12582912.0f);
    const int k = __float_as_int(n) - __float_as_int(12582912.0f);
    n = __fsub_rn(n, 12582912.0f);
    float r = fmaf(-n, 0.693359375f, t);
    r = fmaf(-n, -2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = __fadd_rn(fmaf(p, __fmul_rn(r, r), r), 1.0f);
    const int half = k >> 1;
    return __fmul_rn(__fmul_rn(p, __int_as_float((half + 127) << 23)), __int_as_float((k - half + 127) << 23));
}

PS_DEVICE u64 fixed(float w) { return __double2ull_rn(static_cast<double>(w) * 17592186044416.0); }

PS_DEVICE u64 warp_add(u64 v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
    return v;
}

// One block has one row; warp w has the w-th of 32 stretches of neighbours.
struct Row {
    int begin, end, warp, lane;
    u64* scratch;  // [WARPS] in shared memory

    PS_DEVICE u64 add(u64 v) {  // over all threads, known to all
        v = warp_add(v);
        __syncthreads();
        if (lane == 0) scratch[warp] = v;
        __syncthreads();
        return warp_add(scratch[lane]);
    }
    PS_DEVICE u64 highest(u64 v) {
        v = warp_max(v);
        __syncthreads();
        if (lane == 0) scratch[warp] = v;
        __syncthreads();
        return warp_max(scratch[lane]);
    }
    // What all warps before this one have together; v: the warp's own, the same in all lanes
    PS_DEVICE u64 before(u64 v) {
        __syncthreads();
        if (lane == 0) scratch[warp] = v;
        __syncthreads();
        return warp_add(lane < warp ? scratch[lane] : 0);
    }
    PS_DEVICE u64 total(const float* weights) {
        u64 sum = 0;
        for (int i = begin + lane; i < end; i += WARP) sum += fixed(weights[i]);
        return add(sum);
    }
    // The rank of the best, ~0 if one is NaN
    PS_DEVICE u64 top(const float* x) {
        u64 best = 0;
        for (int i = begin + lane; i < end; i += WARP) {
            const u64 rank = x[i] != x[i] ? ~0ull : rank_of(x[i], i);
            best = rank > best ? rank : best;
        }
        return highest(best);
    }
};

PS_DEVICE float ranked_value(u64 rank) {
    const u32 b = static_cast<u32>(rank >> 32);
    return bits_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}

// Sets to zero all but the best weights, ties to the lower index: as few as add up to `mass`, and at most `count`.  Either is
// reached (both by all together).  The least weight that stays is found by its bits, eight at a time.
PS_DEVICE void keep_best(Row& row, float* weights, u64 count, u64 mass, bool by_mass, u64* sums, u32* counts, u64* found) {
    u32 prefix = 0;
    u64 wanted = by_mass ? mass : count;  // of those that share the prefix
    u64 equals = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += THREADS) sums[i] = 0, counts[i] = 0;
        __syncthreads();
        for (int i = row.begin + row.lane; i < row.end; i += WARP) {
            const u32 key = float_bits(weights[i]);
            if (key == 0 || (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8))) continue;
            if (by_mass) atomicAdd(&sums[key >> shift & 255], fixed(weights[i]));
            atomicAdd(&counts[key >> shift & 255], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 before = 0;
            int bucket = 255, last = -1;
            for (; bucket >= 0; bucket--) {
                if (!counts[bucket]) continue;
                last = bucket;
                const u64 own = by_mass ? sums[bucket] : counts[bucket];
                if (before + own >= wanted) break;
                before += own;
            }
            if (bucket < 0) bucket = last < 0 ? 0 : last, before -= last < 0 ? 0 : (by_mass ? sums[last] : counts[last]);
            found[0] = prefix | static_cast<u32>(bucket) << shift;
            found[1] = wanted > before ? wanted - before : 1;
            found[2] = counts[bucket];
        }
        __syncthreads();
        prefix = static_cast<u32>(found[0]), wanted = found[1], equals = found[2];
        __syncthreads();
    }
    // Of those that weigh as much as the least, the first ones.
    const u64 each = fixed(bits_float(prefix));
    u64 stay = by_mass ? (each ? (wanted + each - 1) / each : equals) : wanted;
    if (stay < 1) stay = 1;
    u64 own = 0;
    for (int i = row.begin + row.lane; i < row.end && stay < equals; i += WARP) own += float_bits(weights[i]) == prefix;
    u64 seen = stay < equals ? row.before(warp_add(own)) : 0;
    for (int first = row.begin; first < row.end; first += WARP) {
        const int i = first + row.lane;
        const u32 key = i < row.end ? float_bits(weights[i]) : 0xffffffffu;
        const u32 equal = __ballot_sync(ALL, key == prefix);
        const bool goes = key < prefix || (key == prefix && seen + __popc(equal & ((1u << row.lane) - 1)) >= stay && stay < equals);
        if (i < row.end && goes) weights[i] = 0;
        seen += __popc(equal);
    }
    __syncthreads();
}

// The first index at which the weights so far add up to more than `target`; the last with any weight if they never do.
PS_DEVICE void draw(Row& row, const float* weights, u64 target, int* token) {
    u64 own = 0;
    int last = -1;
    for (int i = row.begin + row.lane; i < row.end; i += WARP) {
        own += fixed(weights[i]);
        if (weights[i] != 0) last = i;
    }
    own = warp_add(own);
    u64 sum = row.before(own);
    if (threadIdx.x == 0) *token = -1;
    __syncthreads();
    last = __reduce_max_sync(ALL, last);
    if (row.lane == 0 && last >= 0) atomicMax(token, last);  // unless somebody is found below
    __syncthreads();
    if (!(sum <= target && target < sum + own)) return;
    for (int first = row.begin; first < row.end; first += WARP) {
        const int i = first + row.lane;
        u64 up_to = i < row.end ? fixed(weights[i]) : 0;
        for (int d = 1; d < WARP; d <<= 1) {
            const u64 other = __shfl_up_sync(ALL, up_to, d);
            if (row.lane >= d) up_to += other;
        }
        const u32 above = __ballot_sync(ALL, sum + up_to > target);
        if (above) {
            if (row.lane == 0) *token = first + __ffs(above) - 1;
            return;
        }
        sum += __shfl_sync(ALL, up_to, WARP - 1);
    }
}

// grid: (rows)
extern "C" __global__ void __launch_bounds__(THREADS) sample(const __grid_constant__ Sample p) {
    __shared__ u64 scratch[WARPS], sums[256], found[3];
    __shared__ u32 counts[256];
    __shared__ int token;
    let_next_start();
    wait_for_previous();
    const Choice& c = p.choices[blockIdx.x];
    const int n = static_cast<int>(p.vocabulary), warp = threadIdx.x / WARP, each = (n + WARPS - 1) / WARPS;
    const float* raw = c.logits;
    float* work = p.scratch + static_cast<size_t>(blockIdx.x) * n;
    Row row = {min(warp * each, n), min((warp + 1) * each, n), warp, static_cast<int>(threadIdx.x % WARP), scratch};
    Chosen& out = p.chosen[blockIdx.x];
    u64 best = row.top(raw);
    if (best == ~0ull) {
        if (threadIdx.x == 0) out = {-1, 0, 0, 0, 0}, p.tokens[blockIdx.x] = 0;
        return;
    }
    const float highest = ranked_value(best);
    u64 all = 0;
    for (int i = row.begin + row.lane; i < row.end; i += WARP) all += fixed(exponential(__fsub_rn(raw[i], highest)));
    all = row.add(all);
    const float* x = raw;
    if (c.edit_count || c.mask) {
        for (int i = row.begin + row.lane; i < row.end; i += WARP) work[i] = raw[i];
        __syncthreads();
        for (int e = threadIdx.x; e < c.edit_count; e += THREADS) {
            const Edit edit = c.edits[e];
            float v = raw[edit.id];
            if (edit.repeated) v = v > 0 ? __fdiv_rn(v, c.repetition) : __fmul_rn(v, c.repetition);
            v = static_cast<float>(static_cast<double>(v) - edit.subtract);
            work[edit.id] = __fadd_rn(v, edit.add);
        }
        __syncthreads();
        for (int i = row.begin + row.lane; i < row.end && c.mask; i += WARP)
            if (!(c.mask[i / 32] >> i % 32 & 1)) work[i] = -INFINITY;
        __syncthreads();
        x = work;
        best = row.top(x);
    }
    const float top = best == ~0ull ? 0.0f : ranked_value(best);
    if (c.factor == 0 || best == ~0ull || isinf(top)) {
        if (threadIdx.x == 0) token = best == ~0ull ? -1 : static_cast<int>(ranked_id(best));
    } else {
        for (int i = row.begin + row.lane; i < row.end; i += WARP) work[i] = exponential(__fmul_rn(__fsub_rn(x[i], top), c.factor));
        __syncthreads();
        if (c.top_k > 0 && c.top_k < n) keep_best(row, work, c.top_k, 0, false, sums, counts, found);
        if (c.top_p < 1) {
            const u64 mass = static_cast<u64>(c.top_p * static_cast<double>(row.total(work)));
            keep_best(row, work, 0, mass, true, sums, counts, found);
        }
        for (int i = row.begin + row.lane; i < row.end && c.min_p > 0; i += WARP)
            if (work[i] < c.min_p) work[i] = 0;
        __syncthreads();
        draw(row, work, static_cast<u64>(c.chance * static_cast<double>(row.total(work))), &token);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const float logit = token < 0 ? 0.0f : raw[token];
        out = {token, logit, highest, top, static_cast<double>(all) * (1.0 / 17592186044416.0)};
        p.tokens[blockIdx.x] = max(token, 0);
    }
}
