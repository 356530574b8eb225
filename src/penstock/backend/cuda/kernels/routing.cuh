// Which experts see which rows.  Every block of the kernel that needs it first works that out from the router's logits for itself: what
// one block decides for all has to wait for the last of the logits, and then to travel through memory.
#pragma once

#include "common.cuh"

#ifndef ROUTED_ROWS
#define ROUTED_ROWS 8
#endif
constexpr int MAX_ROWS = ROUTED_ROWS, MAX_COUNT = 8, MAX_PAIRS = MAX_ROWS * MAX_COUNT, MAX_PER_LANE = 12, MAX_PARTS = 8;

struct Routing {
    const float* logits;  // [parts, rows, experts]: parts add up to logits
    const float* bias;    // [experts] or null
    const int* table;     // [vocabulary, count] or null: experts by token
    const int* tokens;    // [rows]
    int experts, count, normalize, parts;
    float scale;
};

// By row, best first.
struct Chosen {
    int ids[MAX_ROWS][MAX_COUNT];
    float weights[MAX_ROWS][MAX_COUNT];
};

// An expert and up to four of the rows that chose it: as many as one tensor-core operand has room for, both digits.
constexpr int JOB_ROWS = 4;
struct Job {
    int expert, rows, first;  // rows: how many; first: of its pairs
    int row[JOB_ROWS], padding;
};
struct Jobs {
    int count, pairs, padding[2];
    int vector[MAX_PAIRS];    // a pair of row and expert, in the jobs' order: row · count + the expert's place in the row's choice
    float weight[MAX_PAIRS];
    Job job[MAX_PAIRS];       // rising by expert, so that a row's experts come in an order of its own
};
constexpr int JOB_WORDS = sizeof(Job) / 4, WORDS_BEFORE_JOBS = 4 + 2 * MAX_PAIRS;

constexpr int MAX_EXPERTS = MAX_PER_LANE * WARP, MAX_CANDIDATES = MAX_PER_LANE * MAX_COUNT;

// In shared memory.
struct Choice {
    Chosen chosen;
    u32 candidates[MAX_ROWS * MAX_CANDIDATES];  // keys of the best of every 32 experts, zeros behind them
    u16 candidate_ids[MAX_ROWS * MAX_CANDIDATES];
    u32 rows_of[MAX_EXPERTS];       // a bit for every row that chose the expert
    u32 jobs_before[MAX_PER_LANE];  // of the experts of the warps before: jobs, and pairs in the upper half
    Jobs jobs;
};

// sqrt(log(1 + e^x)), to about 3e-7 of it.  log(1 + t) = 2 atanh z, z = t / (2 + t) ≤ 1/3: a few products where log1pf has a branch and
// forty instructions, one behind the other.
PS_DEVICE float router_score(float x) {
    const float t = expf(-fabsf(x)), z = __fdividef(t, 2.0f + t), square = z * z;
    float series = 2.0f / 15;
#pragma unroll
    for (int k = 13; k > 0; k -= 2) series = fmaf(series, square, 2.0f / k);
    float score;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(score) : "f"(fmaf(series, z, fmaxf(x, 0.0f))));
    return score;
}

// Scores in an order that integers have too; never 0.
PS_DEVICE u32 score_key(float score) { return static_cast<u32>(rank_of(score, 0) >> 32); }

PS_DEVICE int padded_experts(const Routing& r) { return (r.experts + WARP - 1) / WARP * WARP; }

// How many of N keys are better than `own`, or the same and before it; they lie in shared memory, all lanes read the same ones.
template <int N>
PS_DEVICE int better(const u32* keys, u32 own, int place) {
    int count = 0;
#pragma unroll
    for (int j = 0; j < N; j += 4) {
        const uint4 four = load16(keys + j);
        count += four.x > own || (four.x == own && j < place);
        count += four.y > own || (four.y == own && j + 1 < place);
        count += four.z > own || (four.z == own && j + 2 < place);
        count += four.w > own || (four.w == own && j + 3 < place);
    }
    return count;
}

// One warp.  A table may name an expert twice: its first place has the weight of both.
PS_DEVICE void jobs_of_one_row(const Routing& r, Choice& c, int lane) {
    int job = 0, ids[MAX_COUNT];
    float weight = 0, weights[MAX_COUNT];
    u32 again = 0;
    const int id = c.chosen.ids[0][lane % MAX_COUNT];
#pragma unroll
    for (int k = 0; k < MAX_COUNT; k++) ids[k] = c.chosen.ids[0][k], weights[k] = c.chosen.weights[0][k];
#pragma unroll
    for (int k = 0; k < MAX_COUNT; k++) {
        const bool same = k < r.count && ids[k] == id;
        weight += same ? weights[k] : 0.0f, again |= same && k < lane;
    }
    const u32 firsts = __ballot_sync(ALL, lane < r.count && !again);  // places that no earlier one has the same id as
#pragma unroll
    for (int k = 0; k < MAX_COUNT; k++) job += (firsts >> k & 1) & (ids[k] < id);
    if (firsts >> lane & 1) {
        Job& to = c.jobs.job[job];
        to.expert = id, to.rows = 1, to.first = job, to.row[0] = 0;
        c.jobs.vector[job] = lane, c.jobs.weight[job] = weight;
    }
    if (lane == 0) c.jobs.count = c.jobs.pairs = __popc(firsts);
}

// All threads of a block, at least as many as experts: c.chosen and, for more than one row, c.rows_of; a barrier has to follow.
// scratch: two numbers for every row and expert, experts by 32.
PS_DEVICE void choose_experts(const Routing& r, int rows, Choice& c, float* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, i = threadIdx.x, all = rows * r.experts;
    const int padded = padded_experts(r);
    u32* keys = reinterpret_cast<u32*>(scratch + rows * padded);
    if (i < r.experts) c.rows_of[i] = 0;
    for (int k = i; k < rows * MAX_CANDIDATES; k += blockDim.x) c.candidates[k] = 0;
#pragma unroll 1
    for (int at = i; at < rows * padded; at += blockDim.x) {
        const int row = at / padded, expert = at - row * padded, k = row * r.experts + expert;
        if (expert >= r.experts) {
            keys[at] = 0;  // worse than all
            continue;
        }
        float parts[MAX_PARTS], logit = 0;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; part++) parts[part] = part < r.parts ? __ldcg(r.logits + part * all + k) : 0.0f;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; part++) logit += parts[part];
        const float score = router_score(logit);
        scratch[at] = score;
        keys[at] = score_key(score + (r.bias ? r.bias[expert] : 0.0f));
    }
    __syncthreads();
    // The best of every 32 experts, then the best of those, each by how many are better: all comparisons side by side.
    const int groups = (r.experts + WARP - 1) / WARP, candidates = groups * r.count;
    if (r.table) {
        if (const int row = i / MAX_COUNT, k = i % MAX_COUNT; row < rows && k < r.count)
            c.chosen.ids[row][k] = r.table[static_cast<size_t>(r.tokens[row]) * r.count + k];
    } else {
#pragma unroll 1
        for (int unit = warp; unit < rows * groups; unit += blockDim.x / WARP) {
            const int row = unit / groups, group = unit - row * groups, id = group * WARP + lane;
            const u32* from = keys + row * padded + group * WARP;
            const int rank = better<WARP>(from, from[lane], lane);
            if (rank < r.count) {
                const int at = row * MAX_CANDIDATES + group * r.count + rank;
                c.candidates[at] = from[lane], c.candidate_ids[at] = static_cast<u16>(id);
            }
        }
        __syncthreads();
        const int each = (candidates + WARP - 1) / WARP;
#pragma unroll 1
        for (int unit = warp; unit < rows * each; unit += blockDim.x / WARP) {
            const int row = unit / each, mine = (unit - row * each) * WARP + lane;
            const u32* from = c.candidates + row * MAX_CANDIDATES;
            int rank = MAX_COUNT;
            if (mine < candidates) {
                rank = 0;
#pragma unroll 1
                for (int at = 0; at < candidates; at += 8) rank += better<8>(from + at, from[mine], mine - at);
            }
            if (rank < r.count) c.chosen.ids[row][rank] = c.candidate_ids[row * MAX_CANDIDATES + mine];
        }
    }
    __syncthreads();
    if (const int row = i / MAX_COUNT, k = i % MAX_COUNT; row < rows && k < r.count) {
        const int* ids = c.chosen.ids[row];
        float sum = 1e-20f, own = scratch[row * padded + ids[k]];
#pragma unroll
        for (int j = 0; j < MAX_COUNT; j++) sum += j < r.count ? scratch[row * padded + ids[j]] : 0.0f;
        c.chosen.weights[row][k] = (r.normalize ? __fdiv_rn(own, sum) : own) * r.scale;
        if (rows > 1) atomicOr(&c.rows_of[min(static_cast<u32>(ids[k]), MAX_EXPERTS - 1u)], 1u << row);
    }
}

// The same threads, behind a barrier: c.rows_of and c.chosen → c.jobs.
PS_DEVICE void make_jobs(const Routing& r, Choice& c) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, i = threadIdx.x;
    // An expert a thread: how many jobs and pairs are before its own, by bits that the warp counts.
    const u32 mine = i < r.experts ? c.rows_of[i] : 0, before = (1u << lane) - 1;
    const int pairs = __popc(mine), jobs = (pairs + JOB_ROWS - 1) / JOB_ROWS;
    u32 sums = 0, total = 0;  // jobs, and pairs in the upper half
#pragma unroll
    for (int bit = 0; bit < (MAX_ROWS > 15 ? 6 : 4); bit++) {  // a pair for every row
        const u32 has = __ballot_sync(ALL, pairs >> bit & 1);
        sums += __popc(has & before) << (16 + bit), total += __popc(has) << (16 + bit);
    }
#pragma unroll
    for (int bit = 0; bit < (MAX_ROWS > 15 ? 4 : 2); bit++) {
        const u32 has = __ballot_sync(ALL, jobs >> bit & 1);
        sums += __popc(has & before) << bit, total += __popc(has) << bit;
    }
    if (lane == 0 && warp < MAX_PER_LANE) c.jobs_before[warp] = total;
    __syncthreads();
    const int warps = (r.experts + WARP - 1) / WARP;
    if (i == 0) {
        u32 every = 0;
#pragma unroll 1
        for (int w = 0; w < warps; w++) every += c.jobs_before[w];
        c.jobs.count = every & 0xffff, c.jobs.pairs = every >> 16;
    }
    if (mine) {
#pragma unroll 1
        for (int w = 0; w < warp; w++) sums += c.jobs_before[w];
        int job = sums & 0xffff, pair = sums >> 16, at = 0;
#pragma unroll 1
        for (u32 left = mine; left; left &= left - 1, pair++) {
            const int row = __ffs(left) - 1;
            int place = -1;
            float weight = 0;
#pragma unroll 1
            for (int k = 0; k < r.count; k++) {  // a table may name an expert twice: its first place has the weight of both
                if (c.chosen.ids[row][k] != i) continue;
                if (place < 0) place = k;
                weight += c.chosen.weights[row][k];
            }
            c.jobs.vector[pair] = row * r.count + place, c.jobs.weight[pair] = weight;
            Job& to = c.jobs.job[job];
            if (at == 0) to.expert = i, to.first = pair;
            to.row[at++] = row, to.rows = at;
            if (at == JOB_ROWS) at = 0, job++;
        }
    }
    __syncthreads();
}

// All threads of a block, at least as many as experts.
PS_DEVICE void choose(const Routing& r, int rows, Choice& c, float* scratch) {
    choose_experts(r, rows, c, scratch);
    if (rows == 1) {
        __syncwarp();
        if (threadIdx.x < WARP) jobs_of_one_row(r, c, threadIdx.x);
    }
    __syncthreads();
    if (rows > 1) make_jobs(r, c);
}

// All threads of a block: of the jobs those remain whose expert has a place, which takes the expert's; their order stays.
PS_DEVICE void keep_present(Jobs& jobs, const int* places) {
    if (threadIdx.x < WARP) {
        const int lane = threadIdx.x, count = jobs.count;
        int kept = 0, kept_pairs = 0;
#pragma unroll 1
        for (int begin = 0; begin < count; begin += WARP) {
            Job own = {};
            int place = -1, vectors[JOB_ROWS];
            float weights[JOB_ROWS];
            if (begin + lane < count) own = jobs.job[begin + lane], place = __ldcg(places + own.expert);
            const bool present = place >= 0;
#pragma unroll
            for (int k = 0; k < JOB_ROWS; k++)
                if (present && k < own.rows) vectors[k] = jobs.vector[own.first + k], weights[k] = jobs.weight[own.first + k];
            const u32 all = __ballot_sync(ALL, present);
            int pairs = present ? own.rows : 0;  // of this lane and those before it
#pragma unroll
            for (int d = 1; d < WARP; d <<= 1) {
                const int other = __shfl_up_sync(ALL, pairs, d);
                if (lane >= d) pairs += other;
            }
            __syncwarp();  // all have read what others overwrite
            if (present) {
                own.expert = place, own.first = kept_pairs + pairs - own.rows;
                jobs.job[kept + __popc(all & ((1u << lane) - 1))] = own;
#pragma unroll
                for (int k = 0; k < JOB_ROWS; k++)
                    if (k < own.rows) jobs.vector[own.first + k] = vectors[k], jobs.weight[own.first + k] = weights[k];
            }
            kept += __popc(all), kept_pairs += __shfl_sync(ALL, pairs, WARP - 1);
            __syncwarp();
        }
        if (lane == 0) jobs.count = kept, jobs.pairs = kept_pairs;
    }
    __syncthreads();
}

constexpr int CHOICE = (sizeof(Choice) + 127) / 128 * 128, JOBS = (sizeof(Jobs) + 127) / 128 * 128;  // bytes of shared memory

// All threads of a block: jobs ↔ memory
PS_DEVICE void write_jobs(const Jobs& from, Jobs* to) {
    for (int i = threadIdx.x; i < WORDS_BEFORE_JOBS + from.count * JOB_WORDS; i += blockDim.x)
        reinterpret_cast<u32*>(to)[i] = reinterpret_cast<const u32*>(&from)[i];
    __threadfence();
    __syncthreads();
}
PS_DEVICE void read_jobs(const Jobs* from, Jobs& to, int most) {
    for (int i = threadIdx.x; i < WORDS_BEFORE_JOBS + most * JOB_WORDS; i += blockDim.x)
        reinterpret_cast<u32*>(&to)[i] = __ldcg(reinterpret_cast<const u32*>(from) + i);
    __syncthreads();
}
