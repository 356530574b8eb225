// Which experts see which rows.  Every block works it out for itself from the router's logits (256 numbers a row): cheaper than
// a kernel of its own between the router and the experts.
#pragma once

#include "common.cuh"

constexpr int MAX_ROWS = 8, MAX_COUNT = 8, MAX_UNIQUE = MAX_ROWS * MAX_COUNT, MAX_PER_LANE = 16;

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
    int slot[MAX_UNIQUE][MAX_ROWS];      // a row's place for that expert, −1: not its
    float weight[MAX_UNIQUE][MAX_ROWS];  // 0 where it is not
};

PS_DEVICE float router_score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// One warp, one row: the best `count` of score + bias, ties to the lower id, or the table's.
PS_DEVICE void choose_row(const Routing& r, int row, int lane, Chosen& out) {
    const float* logits = r.logits + static_cast<size_t>(row) * r.experts;
    if (r.table) {
        if (lane < r.count) out.ids[row][lane] = r.table[static_cast<size_t>(r.tokens[row]) * r.count + lane];
    } else {
        u64 ranks[MAX_PER_LANE];
#pragma unroll
        for (int j = 0; j < MAX_PER_LANE; j++) {
            const int e = lane + j * WARP;
            ranks[j] = e < r.experts ? rank_of(router_score(logits[e]) + (r.bias ? r.bias[e] : 0.0f), e) : 0;
        }
        for (int k = 0; k < r.count; k++) {
            u64 best = 0;
#pragma unroll
            for (int j = 0; j < MAX_PER_LANE; j++) best = ranks[j] > best ? ranks[j] : best;
            best = warp_max(best);
#pragma unroll
            for (int j = 0; j < MAX_PER_LANE; j++) ranks[j] = ranks[j] == best ? 0 : ranks[j];
            if (lane == 0) out.ids[row][k] = static_cast<int>(ranked_id(best));
        }
    }
    __syncwarp();
    float score = lane < r.count ? router_score(logits[out.ids[row][lane]]) : 0.0f, sum = 1e-20f;
    for (int k = 0; k < r.count; k++) sum += __shfl_sync(ALL, score, k);
    if (lane < r.count) out.weights[row][lane] = (r.normalize ? score / sum : score) * r.scale;
}

// All threads of the block.
PS_DEVICE void choose(const Routing& r, int rows, Chosen& out) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int row = warp; row < rows; row += warps) choose_row(r, row, lane, out);
    __syncthreads();
    if (warp == 0) {
        int found = 0;
        for (int first = 0; first < r.experts; first += WARP) {
            bool wanted = false;
            for (int i = 0; i < rows * r.count; i++) wanted |= out.ids[i / r.count][i % r.count] == first + lane;
            const u32 all = __ballot_sync(ALL, wanted);
            if (wanted) out.unique[found + __popc(all & ((1u << lane) - 1))] = first + lane;
            found += __popc(all);
        }
        if (lane == 0) out.count = found;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < out.count * MAX_ROWS; i += blockDim.x) {
        const int u = i / MAX_ROWS, row = i % MAX_ROWS;
        int slot = -1;
        float weight = 0;
        for (int k = r.count - 1; row < rows && k >= 0; k--)
            if (out.ids[row][k] == out.unique[u]) slot = k, weight += out.weights[row][k];
        out.slot[u][row] = slot;
        out.weight[u][row] = weight;
    }
    __syncthreads();
}
