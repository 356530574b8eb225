// From a row of logits to its next token, as engine/sampling.py chooses it: penalties and bias, what a grammar allows, temperature,
// top-k, top-p, min-p, one draw; and the log of the sum that log-probabilities are measured by.
//
// Floor: 129,280 floats a row, 0.5 MB, in L2.  Eight blocks share a row and keep it in their shared memory, so that it is read once and
// a pass over it takes a microsecond; there are three for a greedy token and up to fifteen.  Weights are the CPU's floats to the bit.
// They are added as whole multiples of 2^-44, so no order of adding matters: the same logits and the same chance give the same token.
#include "common.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / WARP;
#if BULK
constexpr int BLOCKS = 8;  // of a row
#define ROW_OF_BLOCKS __cluster_dims__(BLOCKS, 1, 1)
#else  // no clusters: one, and the row lies in memory
constexpr int BLOCKS = 1;
#define ROW_OF_BLOCKS
#endif

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
    float* scratch;         // [rows, vocabulary], or null where a row fits in its blocks' shared memory
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

PS_DEVICE void all_blocks() {
#if BULK
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// What lies at `here` in the shared memory of another block of the row.
PS_DEVICE u64 shared_of(const u64* here, int block) {
    if (BLOCKS == 1) return *here;
    u32 there;
    u64 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(there) : "memory");
    return v;
}

// A block has one of BLOCKS stretches of a row's neighbours, warp w the w-th of 32 stretches of that.  Indices count from the block's first.
struct Row {
    int begin, end, warp, lane, block, turn;
    u64* scratch;  // [WARPS] in shared memory
    u64* slots;    // [2] likewise: what the others may read, by turns

    // Of lane b what block b has; v: the block's own
    PS_DEVICE u64 of_blocks(u64 v) {
        turn ^= 1;  // whoever reads the other slot still has not passed this barrier
        if (threadIdx.x == 0) slots[turn] = v;
        all_blocks();
        return lane < BLOCKS ? shared_of(slots + turn, lane) : 0;
    }
    PS_DEVICE u64 of_warps(u64 v) {
        __syncthreads();
        if (lane == 0) scratch[warp] = v;
        __syncthreads();
        return scratch[lane];
    }
    PS_DEVICE u64 add(u64 v) { return warp_add(of_blocks(warp_add(of_warps(warp_add(v))))); }  // over all threads, known to all
    PS_DEVICE u64 highest(u64 v) { return warp_max(of_blocks(warp_max(of_warps(warp_max(v))))); }
    // What all warps before this one have together; v: the warp's own, the same in all lanes
    PS_DEVICE u64 before(u64 v) {
        const u64 warps = of_warps(v), blocks = of_blocks(warp_add(warps));
        return warp_add((lane < warp ? warps : 0) + (lane < block ? blocks : 0));
    }
    PS_DEVICE u64 total(const float* weights) {
        u64 sum = 0;
        for (int i = begin + lane; i < end; i += WARP) sum += fixed(weights[i]);
        return add(sum);
    }
    // The rank of the best, ~0 if one is NaN; first: the index of the block's first in the row
    PS_DEVICE u64 top(const float* x, int first) {
        u64 best = 0;
        for (int i = begin + lane; i < end; i += WARP) {
            const u64 rank = x[i] != x[i] ? ~0ull : rank_of(x[i], first + i);
            best = rank > best ? rank : best;
        }
        return highest(best);
    }
};

PS_DEVICE float ranked_value(u64 rank) {
    const u32 b = static_cast<u32>(rank >> 32);
    return bits_float(b & 0x80000000u ? b & 0x7fffffffu : ~b);
}

// Sums and numbers of weights by eight of their bits: a block's own, and all blocks' together
struct Histogram {
    u64 sums[256], counts[256], all_sums[256], all_counts[256];
    u64 found[3];
};

struct Shared {
    Histogram histogram;
    u64 scratch[WARPS], slots[2];
};
static_assert(sizeof(Shared) == 8488, "backend/cuda/sample.py: FIXED_BYTES");

// By one warp: the first bucket from above with which what was wanted is reached, else the last that has any.  The lane that has it says
// which, and what is wanted of it.
PS_DEVICE void find_bucket(Histogram& h, int lane, u64 wanted, bool by_mass, u32 prefix, int shift) {
    const int top = 255 - 8 * lane;
    u64 own = 0, any = 0;
    for (int i = 0; i < 8; i++) own += by_mass ? h.all_sums[top - i] : h.all_counts[top - i], any += h.all_counts[top - i];
    u64 up_to = own;
    for (int d = 1; d < WARP; d <<= 1) {
        const u64 other = __shfl_up_sync(ALL, up_to, d);
        if (lane >= d) up_to += other;
    }
    const u32 reach = __ballot_sync(ALL, any && up_to >= wanted), some = __ballot_sync(ALL, any != 0);
    const int chosen = reach ? __ffs(reach) - 1 : some ? 31 - __clz(some) : 31;
    if (lane != chosen) return;
    u64 before = up_to - own;
    int bucket = 0;
    for (int i = 0; i < 8; i++) {
        if (!h.all_counts[top - i]) continue;
        bucket = top - i;
        const u64 each = by_mass ? h.all_sums[bucket] : h.all_counts[bucket];
        if (before + each >= wanted || i == 7) break;
        bool more = false;
        for (int j = i + 1; j < 8; j++) more |= h.all_counts[top - j] != 0;
        if (!more) break;
        before += each;
    }
    h.found[0] = prefix | static_cast<u32>(bucket) << shift;
    h.found[1] = wanted > before ? wanted - before : 1;
    h.found[2] = h.all_counts[bucket];
}

// Sets to zero all but the best weights, ties to the lower index: as few as add up to `mass`, and at most `count`.  Either is
// reached (both by all together).  The least weight that stays is found by its bits, eight at a time.
PS_DEVICE void keep_best(Row& row, float* weights, u64 count, u64 mass, bool by_mass, Histogram& h) {
    u32 prefix = 0;
    u64 wanted = by_mass ? mass : count;  // of those that share the prefix
    u64 equals = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) h.sums[threadIdx.x] = 0, h.counts[threadIdx.x] = 0;
        __syncthreads();
        for (int i = row.begin + row.lane; i < row.end; i += WARP) {
            const u32 key = float_bits(weights[i]);
            if (key == 0 || (shift < 24 && key >> (shift + 8) != prefix >> (shift + 8))) continue;
            if (by_mass) atomicAdd(&h.sums[key >> shift & 255], fixed(weights[i]));
            atomicAdd(&h.counts[key >> shift & 255], 1ull);
        }
        all_blocks();
        if (threadIdx.x < 512) {
            const int bucket = threadIdx.x & 255;
            const u64* mine = (threadIdx.x < 256 ? h.sums : h.counts) + bucket;
            u64 sum = 0;
            for (int block = 0; block < BLOCKS; block++) sum += shared_of(mine, block);
            (threadIdx.x < 256 ? h.all_sums : h.all_counts)[bucket] = sum;
        }
        all_blocks();  // nobody clears what others still read
        if (row.warp == 0) find_bucket(h, row.lane, wanted, by_mass, prefix, shift);
        __syncthreads();
        prefix = static_cast<u32>(h.found[0]), wanted = h.found[1], equals = h.found[2];
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

// The first index at which the weights so far add up to more than `target`, for the warp that has it; −1 for the others.
PS_DEVICE int draw(Row& row, const float* weights, u64 target) {
    u64 own = 0;
    for (int i = row.begin + row.lane; i < row.end; i += WARP) own += fixed(weights[i]);
    own = warp_add(own);
    u64 sum = row.before(own);
    if (!(sum <= target && target < sum + own)) return -1;
    for (int first = row.begin; first < row.end; first += WARP) {
        const int i = first + row.lane;
        u64 up_to = i < row.end ? fixed(weights[i]) : 0;
        for (int d = 1; d < WARP; d <<= 1) {
            const u64 other = __shfl_up_sync(ALL, up_to, d);
            if (row.lane >= d) up_to += other;
        }
        const u32 above = __ballot_sync(ALL, sum + up_to > target);
        if (above) return first + __ffs(above) - 1;
        sum += __shfl_sync(ALL, up_to, WARP - 1);
    }
    return -1;
}

// Writes the result, on one thread.
PS_DEVICE void say(const Sample& p, int row, const float* raw, int token, float highest, float best, u64 all) {
    p.chosen[row] = {token, token < 0 ? 0.0f : raw[token], highest, best, static_cast<double>(all) * (1.0 / 17592186044416.0)};
    p.tokens[row] = max(token, 0);
}

// grid: (rows · BLOCKS)
extern "C" __global__ void ROW_OF_BLOCKS __launch_bounds__(THREADS) sample(const __grid_constant__ Sample p) {
    extern __shared__ u64 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    float* stretch = reinterpret_cast<float*>(&shared + 1);
    let_next_start();
    wait_for_previous();
    const int number = blockIdx.x / BLOCKS, block = blockIdx.x % BLOCKS, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const Choice& c = p.choices[number];
    const int n = static_cast<int>(p.vocabulary), share = (n + BLOCKS - 1) / BLOCKS, first = min(block * share, n);
    const int own = min(first + share, n) - first, each = (own + WARPS - 1) / WARPS;
    const float* raw = c.logits;
    float* x = p.scratch ? p.scratch + static_cast<size_t>(number) * n + first : stretch;
    Row row = {min(warp * each, own), min((warp + 1) * each, own), warp, lane, block, 0, shared.scratch, shared.slots};
    const bool speaks = block == 0 && threadIdx.x == 0;
    for (int i = row.begin + lane; i < row.end; i += WARP) x[i] = raw[first + i];
    __syncwarp();
    u64 best = row.top(x, first);
    if (best == ~0ull) {
        if (speaks) say(p, number, raw, -1, 0, 0, 0);
        all_blocks();  // nobody ends while others may read what they have
        return;
    }
    const float highest = ranked_value(best);
    u64 all = 0;
    for (int i = row.begin + lane; i < row.end; i += WARP) all += fixed(exponential(__fsub_rn(x[i], highest)));
    all = row.add(all);
    if (c.edit_count || c.mask) {
        for (int e = threadIdx.x; e < c.edit_count; e += THREADS) {
            const Edit edit = c.edits[e];
            if (edit.id < first || edit.id >= first + own) continue;
            float v = raw[edit.id];
            if (edit.repeated) v = v > 0 ? __fdiv_rn(v, c.repetition) : __fmul_rn(v, c.repetition);
            v = static_cast<float>(static_cast<double>(v) - edit.subtract);
            x[edit.id - first] = __fadd_rn(v, edit.add);
        }
        __syncthreads();
        for (int i = row.begin + lane; i < row.end && c.mask; i += WARP)
            if (!(c.mask[(first + i) / 32] >> (first + i) % 32 & 1)) x[i] = -INFINITY;
        best = row.top(x, first);
    }
    const float top = best == ~0ull ? 0.0f : ranked_value(best);
    if (c.factor == 0 || best == ~0ull || isinf(top)) {
        if (speaks) say(p, number, raw, best == ~0ull ? -1 : static_cast<int>(ranked_id(best)), highest, top, all);
        all_blocks();
        return;
    }
    for (int i = row.begin + lane; i < row.end; i += WARP) x[i] = exponential(__fmul_rn(__fsub_rn(x[i], top), c.factor));
    if (c.top_k > 0 && c.top_k < n) keep_best(row, x, c.top_k, 0, false, shared.histogram);
    if (c.top_p < 1) {
        const u64 mass = static_cast<u64>(c.top_p * static_cast<double>(row.total(x)));
        keep_best(row, x, 0, mass, true, shared.histogram);
    }
    for (int i = row.begin + lane; i < row.end && c.min_p > 0; i += WARP)
        if (x[i] < c.min_p) x[i] = 0;
    const u64 weight = row.total(x), target = static_cast<u64>(c.chance * static_cast<double>(weight));
    const int found = draw(row, x, target);
    if (found >= 0 && lane == 0) say(p, number, raw, first + found, highest, top, all);
    u64 last = 0;  // with any weight, counted from 1
    for (int i = row.begin + lane; i < row.end; i += WARP)
        if (x[i] != 0) last = first + i + 1;
    last = row.highest(last);
    if (speaks && target >= weight) say(p, number, raw, static_cast<int>(last) - 1, highest, top, all);
    all_blocks();
}
