// Which experts see which rows.  Every block of the kernel that needs it first works that out from the router's logits for itself: what
// one block decides for all has to wait for the last of the logits, and then to travel through memory.
#pragma once

#include "common.cuh"

constexpr int MAX_ROWS = 8, MAX_COUNT = 8, MAX_PAIRS = MAX_ROWS * MAX_COUNT, MAX_PER_LANE = 12;

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
    int expert, rows;    // rows: how many
    int row[JOB_ROWS];
    int slot[JOB_ROWS];  // the expert's place in the row's choice
    float weight[JOB_ROWS];
};
struct Jobs {
    int count, padding[3];
    Job job[MAX_PAIRS];  // rising by expert, so that a row's experts come in an order of its own
};
constexpr int JOB_WORDS = sizeof(Job) / 4;

// In shared memory.
struct Choice {
    Chosen chosen;
    int before[MAX_PAIRS];  // rows before this pair's that chose its expert; −1: not a pair
    Jobs jobs;
};

__device__ __noinline__ float router_score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// Scores in an order that integers have too; never 0.
PS_DEVICE u32 score_key(float score) { return static_cast<u32>(rank_of(score, 0) >> 32); }

// One warp, one row: the best `count` keys, ties to the lower id, or the table's → ids and weights [count]
template <class Key, class Score>
PS_DEVICE void choose_row(const Routing& r, int row, int lane, int* ids, float* weights, const Key& key, const Score& score_of) {
    int mine = 0;  // lane k: the id of place k
    if (r.table) {
        if (lane < r.count) mine = r.table[static_cast<size_t>(r.tokens[row]) * r.count + lane];
    } else {
        u32 keys[MAX_PER_LANE];  // 0: none, or taken
#pragma unroll
        for (int j = 0; j < MAX_PER_LANE; j++) {
            keys[j] = 0;
            if (j * WARP >= r.experts) continue;  // the same for all lanes
            const int e = lane + j * WARP;
            if (e < r.experts) keys[j] = key(e);
        }
#pragma unroll 1
        for (int k = 0; k < r.count; k++) {
            u32 best = 0, id = 0xffffffffu;
#pragma unroll
            for (int j = MAX_PER_LANE - 1; j >= 0; j--)
                if (keys[j] >= best && keys[j]) best = keys[j], id = lane + j * WARP;
            const u32 top = __reduce_max_sync(ALL, best);
            const u32 chosen = __reduce_min_sync(ALL, best == top ? id : 0xffffffffu);
#pragma unroll
            for (int j = 0; j < MAX_PER_LANE; j++) keys[j] = chosen == lane + j * WARP ? 0u : keys[j];
            if (lane == k) mine = static_cast<int>(chosen);
        }
    }
    const float score = lane < r.count ? score_of(mine) : 0.0f;
    float sum = 1e-20f;
#pragma unroll 1
    for (int k = 0; k < r.count; k++) sum += __shfl_sync(ALL, score, k);
    if (lane < r.count) {
        ids[lane] = mine;
        weights[lane] = (r.normalize ? score / sum : score) * r.scale;
    }
}

// The same from logits in memory.
PS_DEVICE void choose_row(const Routing& r, int row, int lane, int* ids, float* weights) {
    const float* logits = r.logits + static_cast<size_t>(row) * r.experts;
    auto score = [&](int e) { return router_score(__ldcg(logits + e)); };
    auto key = [&](int e) { return score_key(score(e) + (r.bias ? r.bias[e] : 0.0f)); };
    choose_row(r, row, lane, ids, weights, key, score);
}

// One warp.  A table may name an expert twice: its first place has the weight of both.
PS_DEVICE void jobs_of_one_row(const Routing& r, Choice& c, int lane) {
    __syncwarp();
    const int id = lane < r.count ? c.chosen.ids[0][lane] : -1;
    const float own = lane < r.count ? c.chosen.weights[0][lane] : 0.0f;
    bool again = false;
    float weight = 0;
    int job = 0;
#pragma unroll 1
    for (int k = 0; k < r.count; k++) {
        const float other = __shfl_sync(ALL, own, k);
        if (__shfl_sync(ALL, id, k) == id) weight += other, again |= k < lane;
    }
    const bool first = lane < r.count && !again;
    const u32 firsts = __ballot_sync(ALL, first);
#pragma unroll 1
    for (int k = 0; k < r.count; k++) {
        const int other = __shfl_sync(ALL, id, k);
        job += (firsts >> k & 1) && other < id;
    }
    if (first) {
        Job& to = c.jobs.job[job];
        to.expert = id, to.rows = 1, to.row[0] = 0, to.slot[0] = lane, to.weight[0] = weight;
    }
    if (lane == 0) c.jobs.count = __popc(firsts);
}

// All threads of a block.  scratch: two numbers for every row and expert.  Pair i is (row i / 8, place i % 8).
PS_DEVICE void choose(const Routing& r, int rows, Choice& c, float* scratch) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, i = threadIdx.x, all = rows * r.experts;
    u32* keys = reinterpret_cast<u32*>(scratch + all);
#pragma unroll 1
    for (int k = i; k < all; k += blockDim.x) {
        float logit = 0;
#pragma unroll 4
        for (int part = 0; part < r.parts; part++) logit += __ldcg(r.logits + part * all + k);
        const float score = router_score(logit);
        scratch[k] = score;
        keys[k] = score_key(score + (r.bias ? r.bias[k % r.experts] : 0.0f));
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp; row < rows; row += blockDim.x / WARP) {
        const int first = row * r.experts;
        choose_row(r, row, lane, c.chosen.ids[row], c.chosen.weights[row], [&](int e) { return keys[first + e]; },
                   [&](int e) { return scratch[first + e]; });
    }
    if (rows == 1) {
        if (warp == 0) jobs_of_one_row(r, c, lane);
        __syncthreads();
        return;
    }
    __syncthreads();
    const int row = i / MAX_COUNT, place = i % MAX_COUNT, pairs = rows * MAX_COUNT;
    const int* ids = &c.chosen.ids[0][0];
    int id = 0, before = -1;
    float weight = 0;
    if (i < pairs) {
        if (place < r.count) {
            id = ids[i], before = 0;
#pragma unroll 1
            for (int k = 0; k < row; k++) {
                bool has = false;
#pragma unroll 1
                for (int j = 0; j < r.count; j++) has |= ids[k * MAX_COUNT + j] == id;
                before += has;
            }
#pragma unroll 1
            for (int j = 0; j < r.count; j++) {  // a table may name an expert twice: its first place has the weight of both
                if (ids[row * MAX_COUNT + j] != id) continue;
                if (j < place) before = -1;
                weight += c.chosen.weights[row][j];
            }
        }
        c.before[i] = before;
    }
    __syncthreads();
    if (i < pairs) {
        int job = before / JOB_ROWS, count = 0;
#pragma unroll 2
        for (int j = 0; j < pairs; j++) {
            const bool begins = c.before[j] >= 0 && c.before[j] % JOB_ROWS == 0;
            count += begins, job += begins && ids[j] < id;
        }
        if (before >= 0) {
            const int at = before % JOB_ROWS;
            Job& to = c.jobs.job[job];
            to.expert = id, to.row[at] = row, to.slot[at] = place, to.weight[at] = weight;
            int together = at + 1;  // whoever comes last in the job says how many they are
#pragma unroll 1
            for (int j = (row + 1) * MAX_COUNT; j < pairs; j++)
                if (c.before[j] > before && ids[j] == id) together = 0;
            if (together || at == JOB_ROWS - 1) to.rows = at + 1;
        }
        if (i == 0) c.jobs.count = count;
    }
    __syncthreads();
}

// All threads of a block: of the jobs those remain whose expert has a place, which takes the expert's; their order stays.
PS_DEVICE void keep_present(Jobs& jobs, const int* places) {
    if (threadIdx.x < WARP) {
        const int lane = threadIdx.x, count = jobs.count;
        int kept = 0;
#pragma unroll 1
        for (int first = 0; first < count; first += WARP) {
            Job own;
            int place = -1;
            if (first + lane < count) own = jobs.job[first + lane], place = __ldcg(places + own.expert);
            const u32 present = __ballot_sync(ALL, place >= 0);
            own.expert = place;
            __syncwarp();
            if (place >= 0) jobs.job[kept + __popc(present & ((1u << lane) - 1))] = own;
            kept += __popc(present);
        }
        if (lane == 0) jobs.count = kept;
    }
    __syncthreads();
}

// All threads of a block: jobs ↔ memory
PS_DEVICE void write_jobs(const Jobs& from, Jobs* to) {
    for (int i = threadIdx.x; i < 4 + from.count * JOB_WORDS; i += blockDim.x)
        reinterpret_cast<u32*>(to)[i] = reinterpret_cast<const u32*>(&from)[i];
    __threadfence();
    __syncthreads();
}
PS_DEVICE void read_jobs(const Jobs* from, Jobs& to, int most) {
    for (int i = threadIdx.x; i < 4 + most * JOB_WORDS; i += blockDim.x)
        reinterpret_cast<u32*>(&to)[i] = __ldcg(reinterpret_cast<const u32*>(from) + i);
    __syncthreads();
}
