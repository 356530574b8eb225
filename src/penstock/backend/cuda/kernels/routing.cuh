// Which experts see which rows: worked out by the warp that writes the last of the router's logits, for the kernels that follow.
#pragma once

#include "common.cuh"

constexpr int MAX_ROWS = 8, MAX_COUNT = 8, MAX_UNIQUE = MAX_ROWS * MAX_COUNT, MAX_PER_LANE = 12;

struct Routing {
    const float* logits;  // [rows, experts]
    const float* bias;    // [experts] or null
    const int* table;     // [vocabulary, count] or null: experts by token
    const int* tokens;    // [rows]
    int experts, count, normalize;
    float scale;
};

struct Chosen {
    int ids[MAX_ROWS][MAX_COUNT];
    float weights[MAX_ROWS][MAX_COUNT];
    int unique[MAX_UNIQUE];  // in rising order, so that a row's experts come in an order of its own
    int count;               // of them
    int first[MAX_UNIQUE];
    int slot[MAX_UNIQUE][MAX_ROWS];      // a row's place for that expert, −1: not its
    float weight[MAX_UNIQUE][MAX_ROWS];  // 0 where it is not
};

__device__ __noinline__ float router_score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// One warp, one row: the best `count` of score + bias, ties to the lower id, or the table's → ids and weights [count]
PS_DEVICE void choose_row(const Routing& r, int row, int lane, int* ids, float* weights) {
    const float* logits = r.logits + static_cast<size_t>(row) * r.experts;
    int mine = 0;  // lane k: the id of place k
    if (r.table) {
        if (lane < r.count) mine = r.table[static_cast<size_t>(r.tokens[row]) * r.count + lane];
    } else {
        u32 keys[MAX_PER_LANE];  // floats in the order of integers; 0: none, or taken
#pragma unroll
        for (int j = 0; j < MAX_PER_LANE; j++) {
            keys[j] = 0;
            if (j * WARP >= r.experts) continue;  // the same for all lanes
            const int e = lane + j * WARP;
            if (e < r.experts)
                keys[j] = static_cast<u32>(rank_of(router_score(__ldcg(logits + e)) + (r.bias ? r.bias[e] : 0.0f), 0) >> 32);
        }
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
    const float score = lane < r.count ? router_score(__ldcg(logits + mine)) : 0.0f;
    float sum = 1e-20f;
    for (int k = 0; k < r.count; k++) sum += __shfl_sync(ALL, score, k);
    if (lane < r.count) {
        ids[lane] = mine;
        weights[lane] = (r.normalize ? score / sum : score) * r.scale;
    }
}

// All threads of a block, `here` in shared memory, `to` where the next kernels read.  Pair i is (row i / 8, place i % 8).
PS_DEVICE void choose(const Routing& r, int rows, Chosen& here, Chosen* to) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int row = warp; row < rows; row += warps) choose_row(r, row, lane, here.ids[row], here.weights[row]);
    __syncthreads();
    if (warp) return;
    const int pairs = rows * MAX_COUNT;
    const int* ids = &here.ids[0][0];
    int count = 0;
    for (int i = lane; i < MAX_UNIQUE; i += WARP) {  // is it the first with its id?
        bool first = i < pairs && i % MAX_COUNT < r.count;
        const int id = first ? ids[i] : 0;
        for (int j = 0; j < i && first; j++) first = j % MAX_COUNT >= r.count || ids[j] != id;
        here.first[i] = first;
        count += __popc(__ballot_sync(ALL, first));
    }
    __syncwarp();
    for (int i = lane; i < pairs; i += WARP) {  // its place is how many distinct ids are smaller
        if (!here.first[i]) continue;
        int place = 0;
        for (int j = 0; j < pairs; j++) place += here.first[j] && ids[j] < ids[i];
        here.unique[place] = ids[i], to->unique[place] = ids[i];
    }
    __syncwarp();
    for (int k = lane; k < count * MAX_ROWS; k += WARP) {
        const int u = k / MAX_ROWS, row = k % MAX_ROWS, id = here.unique[u];
        int slot = -1;
        float weight = 0;
        for (int j = r.count - 1; row < rows && j >= 0; j--)
            if (here.ids[row][j] == id) slot = j, weight += here.weights[row][j];
        to->slot[u][row] = slot;
        to->weight[u][row] = weight;
    }
    for (int i = lane; i < pairs; i += WARP) (&to->ids[0][0])[i] = ids[i], (&to->weights[0][0])[i] = (&here.weights[0][0])[i];
    if (lane == 0) to->count = count;
}

// All threads of a block: what `choose` has written → shared memory
PS_DEVICE void load_chosen(const Chosen* from, Chosen& to) {
    for (int i = threadIdx.x; i < static_cast<int>(sizeof(Chosen) / 4); i += blockDim.x)
        reinterpret_cast<u32*>(&to)[i] = __ldcg(reinterpret_cast<const u32*>(from) + i);
    __syncthreads();
}
