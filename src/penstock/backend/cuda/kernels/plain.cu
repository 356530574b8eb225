// The ops of a step for any shape: what the fast kernels do not take (heads of other than 512 channels, indexers of other than 128,
// keys that are not f16, other than four streams, experts in plain numbers).  Simple, exact in the same way, one row at a time.
#include "epilogue.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;

// ── weights by row: f32, f16, bf16 (RowKind), and Q8_0 for embeddings ────────────────────────────────────────────────

constexpr int ROW_Q8_0 = 3;

PS_DEVICE float load_weight(const char* row, int kind, int i) {
    if (kind != ROW_Q8_0) return load_row(row, kind, i);
    const char* block = row + i / 32 * 34;
    const u16 d = static_cast<u16>(static_cast<u8>(block[0]) | static_cast<u8>(block[1]) << 8);
    return half_to_float(d) * static_cast<float>(static_cast<i8>(block[2 + i % 32]));
}

struct Embed {
    const char* table;  // [vocabulary, row_bytes]
    const int* tokens;  // [rows]
    float* out;         // [rows, copies, hidden]
    long long row_bytes;
    int kind, hidden, copies;
};

extern "C" __global__ void __launch_bounds__(THREADS) embed(const __grid_constant__ Embed p) {
    let_next_start();
    wait_for_previous();
    const char* row = p.table + p.tokens[blockIdx.x] * p.row_bytes;
    float* out = p.out + static_cast<size_t>(blockIdx.x) * p.copies * p.hidden;
    for (int i = threadIdx.x; i < p.hidden; i += THREADS) {
        const float v = load_weight(row, p.kind, i);
        for (int c = 0; c < p.copies; c++) out[static_cast<size_t>(c) * p.hidden + i] = v;
    }
}

// ── hyper-connections ────────────────────────────────────────────────────────────────────────────────────────────────

constexpr int MAX_STREAMS = 16, MAX_MIX = (2 + MAX_STREAMS) * MAX_STREAMS;

struct Mix {
    const float* streams;  // [rows, n, hidden]
    const char* fn;        // [outs, n · hidden]
    const float *base, *scale;  // [outs]; [3], or [n] for the head
    float* mix;            // [rows, mix_stride]: pre n, post n, comb n · n
    float* x;              // [rows, hidden]: Σ pre · stream
    int fn_kind, n, hidden, head, iterations, mix_stride;
    float eps, hc_eps;
};

extern "C" __global__ void __launch_bounds__(THREADS) mix_streams(const __grid_constant__ Mix p) {
    __shared__ float sums[MAX_MIX + 1], mix[MAX_MIX];
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, n = p.n, total = n * p.hidden;
    const int outs = p.head ? n : (2 + n) * n;
    const float* streams = p.streams + static_cast<size_t>(blockIdx.x) * total;
    const size_t row_bytes = static_cast<size_t>(total) * (p.fn_kind == ROW_F32 ? 4 : 2);
    for (int out = warp; out <= outs; out += WARPS) {  // the last: the sum of squares
        float sum = 0;
        for (int i = lane; i < total; i += WARP)
            sum = fmaf(out < outs ? load_row(p.fn + out * row_bytes, p.fn_kind, i) : streams[i], streams[i], sum);
        sum = warp_sum(sum);
        if (lane == 0) sums[out] = sum;
    }
    __syncthreads();
    const float factor = 1.0f / sqrtf(sums[outs] / static_cast<float>(total) + p.eps);
    for (int i = threadIdx.x; i < outs; i += THREADS) {
        const int group = p.head ? i : i < n ? 0 : i < 2 * n ? 1 : 2;
        const float v = sums[i] * factor * p.scale[group] + p.base[i];
        mix[i] = i >= 2 * n ? v : 1.0f / (1.0f + expf(-v)) * (i < n ? 1.0f : 2.0f) + (i < n ? p.hc_eps : 0.0f);
    }
    __syncthreads();
    if (threadIdx.x == 0 && !p.head) {  // the matrix [source, destination] made doubly stochastic, columns last
        float* c = mix + 2 * n;
        for (int i = 0; i < n; i++) {
            float top = -INFINITY, sum = 0;
            for (int j = 0; j < n; j++) top = fmaxf(top, c[i * n + j]);
            for (int j = 0; j < n; j++) c[i * n + j] = expf(c[i * n + j] - top), sum += c[i * n + j];
            for (int j = 0; j < n; j++) c[i * n + j] = c[i * n + j] / sum + p.hc_eps;
        }
        for (int k = 0; k < p.iterations; k++) {
            for (int i = 0; i < n && k; i++) {
                float sum = p.hc_eps;
                for (int j = 0; j < n; j++) sum += c[i * n + j];
                for (int j = 0; j < n; j++) c[i * n + j] /= sum;
            }
            for (int j = 0; j < n; j++) {
                float sum = p.hc_eps;
                for (int i = 0; i < n; i++) sum += c[i * n + j];
                for (int i = 0; i < n; i++) c[i * n + j] /= sum;
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < outs; i += THREADS) p.mix[static_cast<size_t>(blockIdx.x) * p.mix_stride + i] = mix[i];
    for (int d = threadIdx.x; d < p.hidden; d += THREADS) {
        float v = 0;
        for (int i = 0; i < n; i++) v = fmaf(mix[i], streams[static_cast<size_t>(i) * p.hidden + d], v);
        p.x[static_cast<size_t>(blockIdx.x) * p.hidden + d] = v;
    }
}

struct Leave {
    float* streams;  // [rows, n, hidden], in place
    const float *y, *mix;  // [rows, hidden], [rows, mix_stride]
    int n, hidden, mix_stride;
};

// grid: (hidden / 256, rows)
extern "C" __global__ void __launch_bounds__(THREADS) leave_streams(const __grid_constant__ Leave p) {
    let_next_start();
    wait_for_previous();
    const int d = blockIdx.x * THREADS + threadIdx.x, row = blockIdx.y;
    if (d >= p.hidden) return;
    float* streams = p.streams + static_cast<size_t>(row) * p.n * p.hidden + d;
    const float *mix = p.mix + static_cast<size_t>(row) * p.mix_stride, y = p.y[static_cast<size_t>(row) * p.hidden + d];
    float v[MAX_STREAMS];
    for (int i = 0; i < p.n; i++) v[i] = streams[static_cast<size_t>(i) * p.hidden];
    for (int j = 0; j < p.n; j++) {
        float out = mix[p.n + j] * y;
        for (int i = 0; i < p.n; i++) out = fmaf(mix[2 * p.n + i * p.n + j], v[i], out);
        streams[static_cast<size_t>(j) * p.hidden] = out;
    }
}

// ── indexer ──────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Scores {
    const float* q;      // [rows, heads, dim], not yet rotated
    const float* gates;  // [rows, gates_stride]
    RowsAt keys;         // [rows, dim]
    const int* positions;
    const char* const* states;
    const float2* turns;  // [rows, rope / 2]
    float* scores;        // [rows, stride]
    int heads, dim, rope, kind, ratio, stride, gates_stride, enough;
};

// grid: (blocks, rows); shared memory: heads · (dim + 1) floats
extern "C" __global__ void __launch_bounds__(THREADS) score_rows(const __grid_constant__ Scores p) {
    extern __shared__ float shared_floats[];
    wait_for_previous();
    let_next_start();  // only now: see indexer.cu
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.y;
    const int visible = (p.positions[row] + 1) / p.ratio;
    if (visible <= p.enough || static_cast<int>(blockIdx.x) * WARPS >= visible) return;
    float *q = shared_floats, *gates = q + p.heads * p.dim;
    const float scale = 1.0f / sqrtf(static_cast<float>(p.dim) * static_cast<float>(p.heads));
    for (int h = threadIdx.x; h < p.heads; h += THREADS) gates[h] = p.gates[static_cast<size_t>(row) * p.gates_stride + h] * scale;
    const float* from = p.q + static_cast<size_t>(row) * p.heads * p.dim;
    for (int i = threadIdx.x; i < p.heads * p.dim; i += THREADS) {
        const int d = i % p.dim - (p.dim - p.rope);
        float v = from[i];
        if (d >= 0) {
            const float2 turn = p.turns[static_cast<size_t>(row) * (p.rope / 2) + d / 2];
            v = d % 2 ? from[i - 1] * turn.y + v * turn.x : v * turn.x - from[i + 1] * turn.y;
        }
        q[i] = v;
    }
    __syncthreads();
    for (int r = blockIdx.x * WARPS + warp; r < visible; r += gridDim.x * WARPS) {
        const char* key = p.states[row] + p.keys.at + static_cast<size_t>(r) * p.keys.apart;
        float score = 0;
        for (int h = 0; h < p.heads; h++) {
            float dot = 0;
            for (int d = lane; d < p.dim; d += WARP) dot = fmaf(q[h * p.dim + d], load_row(key, p.kind, d), dot);
            score = fmaf(gates[h], fmaxf(warp_sum(dot), 0.0f), score);
        }
        if (lane == 0) p.scores[static_cast<size_t>(row) * p.stride + r] = score;
    }
}

// ── attention ────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Attention {
    const float* q;          // [rows, heads, dim] before norm and rotation
    const int* picks;        // [rows, pick_stride], or null: all visible rows
    const int* pick_counts;  // [rows]
    const int* positions;
    const char* const* states;
    const float2* turns;
    const float* sinks;
    float* out;  // [rows, heads · dim]
    RowsAt window, compressed;
    int heads, dim, rope, kind, window_length, ratio, pick_stride;
    float eps;
};

constexpr int SEEING_WARPS = 4;

// grid: (heads, rows); shared memory: 5 · dim floats
extern "C" __global__ void __launch_bounds__(SEEING_WARPS * WARP) see(const __grid_constant__ Attention p) {
    extern __shared__ float shared_floats[];
    __shared__ float parts[SEEING_WARPS][2];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, head = blockIdx.x, row = blockIdx.y, dim = p.dim, threads = SEEING_WARPS * WARP;
    float *q = shared_floats, *sums = q + dim + warp * dim;
    let_next_start();
    wait_for_previous();
    const int position = p.positions[row], near = min(position + 1, p.window_length), first = position - near + 1;
    const int far = !p.ratio ? 0 : p.picks ? p.pick_counts[row] : (position + 1) / p.ratio;
    const char* state = p.states[row];
    const float* from = p.q + (static_cast<size_t>(row) * p.heads + head) * dim;
    const float2* turns = p.turns + static_cast<size_t>(row) * (p.rope / 2);
    float squares = 0;  // every warp for itself, all of them alike
    for (int d = lane; d < dim; d += WARP) squares = fmaf(from[d], from[d], squares);
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + p.eps) / sqrtf(static_cast<float>(dim));
    for (int d = threadIdx.x; d < dim; d += threads) {
        const int rotary = d - (dim - p.rope);
        float v = from[d];
        if (rotary >= 0) {
            const float2 turn = turns[rotary / 2];
            v = rotary % 2 ? from[d - 1] * turn.y + v * turn.x : v * turn.x - from[d + 1] * turn.y;
        }
        q[d] = v * factor;
    }
    for (int d = lane; d < dim; d += WARP) sums[d] = 0;
    __syncthreads();
    float top = -INFINITY, total = 0;
    for (int k = warp; k < near + far; k += SEEING_WARPS) {
        const char* key = state + (k < near ? p.window.at + static_cast<size_t>((first + k) % p.window.capacity) * p.window.apart
                                            : p.compressed.at + static_cast<size_t>(p.picks ? p.picks[static_cast<size_t>(row) * p.pick_stride + k - near] : k - near) * p.compressed.apart);
        float dot = 0;
        for (int d = lane; d < dim; d += WARP) dot = fmaf(q[d], load_row(key, p.kind, d), dot);
        dot = warp_sum(dot);
        const float higher = fmaxf(top, dot), before = expf(top - higher), weight = expf(dot - higher);
        top = higher, total = total * before + weight;
        for (int d = lane; d < dim; d += WARP) sums[d] = fmaf(weight, load_row(key, p.kind, d), sums[d] * before);
    }
    if (lane == 0) parts[warp][0] = top, parts[warp][1] = total;
    __syncthreads();
    const float sink = p.sinks[head];
    float highest = sink;
    for (int w = 0; w < SEEING_WARPS; w++) highest = fmaxf(highest, parts[w][0]);
    float all = expf(sink - highest), factors[SEEING_WARPS];
    for (int w = 0; w < SEEING_WARPS; w++) factors[w] = expf(parts[w][0] - highest), all = fmaf(parts[w][1], factors[w], all);
    for (int d = threadIdx.x; d < dim; d += threads) {
        float v = 0;
        for (int w = 0; w < SEEING_WARPS; w++) v = fmaf(q[dim + w * dim + d], factors[w], v);
        shared_floats[dim + d] = v / all;  // the first warp's sums, which nobody else reads at d
    }
    __syncthreads();
    float* out = p.out + (static_cast<size_t>(row) * p.heads + head) * dim;
    const float* v = shared_floats + dim;
    for (int d = threadIdx.x; d < dim; d += threads) {
        const int rotary = d - (dim - p.rope);
        float turned = v[d];
        if (rotary >= 0) {  // back by the query's position
            const float2 turn = turns[rotary / 2];
            turned = rotary % 2 ? v[d] * turn.x - v[d - 1] * turn.y : v[d] * turn.x + v[d + 1] * turn.y;
        }
        out[d] = turned;
    }
}

// ── experts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

struct Route {
    const float* logits;  // [rows, experts]
    const float* bias;    // [experts] or null
    const int* table;     // [vocabulary, count] or null
    const int* tokens;    // [rows]
    int* ids;             // [rows, count]
    float* weights;
    int experts, count, normalize;
    float scale;
};

PS_DEVICE float score_of(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// One block a row: the best `count` of score + bias, ties to the lower id, or the table's.
extern "C" __global__ void __launch_bounds__(THREADS) route(const __grid_constant__ Route p) {
    __shared__ u64 tops[WARPS];
    __shared__ u64 chosen;
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x;
    const float* logits = p.logits + static_cast<size_t>(row) * p.experts;
    int* ids = p.ids + static_cast<size_t>(row) * p.count;
    float* weights = p.weights + static_cast<size_t>(row) * p.count;
    u64 last = ~0ull;
    for (int k = 0; k < p.count && !p.table; k++) {
        u64 best = 0;
        for (int e = threadIdx.x; e < p.experts; e += THREADS) {
            const u64 rank = rank_of(score_of(logits[e]) + (p.bias ? p.bias[e] : 0.0f), e);
            if (rank < last && rank > best) best = rank;
        }
        best = warp_max(best);
        if (lane == 0) tops[warp] = best;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < WARPS; w++) best = tops[w] > best ? tops[w] : best;
            chosen = best;
            ids[k] = static_cast<int>(ranked_id(best));
        }
        __syncthreads();
        last = chosen;
    }
    if (threadIdx.x) return;
    float sum = 1e-20f;
    for (int k = 0; k < p.count; k++) {
        if (p.table) ids[k] = p.table[static_cast<size_t>(p.tokens[row]) * p.count + k];
        weights[k] = score_of(logits[ids[k]]);
        sum += weights[k];
    }
    for (int k = 0; k < p.count; k++) weights[k] = (p.normalize ? weights[k] / sum : weights[k]) * p.scale;
}

struct ExpertRows {
    const char *gate, *up, *down;  // [experts, width, hidden] twice, [experts, hidden, width]
    const char* x;                 // [rows] floats, x_apart bytes apart
    const int* ids;                // [rows, count]
    const float* weights;
    const float* shared;           // [rows, hidden]: added last
    float* acts;                   // [rows, count, width]
    float* out;                    // [rows, hidden]
    long long x_apart;
    int gate_kind, up_kind, down_kind, width, hidden, count;
    float limit;
};

PS_DEVICE const char* expert_row(const char* weights, int kind, int expert, int rows, int row, int columns) {
    return weights + (static_cast<size_t>(expert) * rows + row) * columns * (kind == ROW_F32 ? 4 : 2);
}

// grid: (width / 8, rows · count): a warp for each number
extern "C" __global__ void __launch_bounds__(THREADS) expert_up(const __grid_constant__ ExpertRows p) {
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, at = blockIdx.x * WARPS + warp, vector = blockIdx.y;
    if (at >= p.width) return;
    const float* x = reinterpret_cast<const float*>(p.x + vector / p.count * p.x_apart);
    const char* gate = expert_row(p.gate, p.gate_kind, p.ids[vector], p.width, at, p.hidden);
    const char* up = expert_row(p.up, p.up_kind, p.ids[vector], p.width, at, p.hidden);
    float a = 0, b = 0;
    for (int i = lane; i < p.hidden; i += WARP) {
        a = fmaf(load_row(gate, p.gate_kind, i), x[i], a);
        b = fmaf(load_row(up, p.up_kind, i), x[i], b);
    }
    a = warp_sum(a), b = warp_sum(b);
    if (lane == 0) p.acts[static_cast<size_t>(vector) * p.width + at] = swiglu(a, b, p.limit);
}

// grid: (hidden / 8, rows)
extern "C" __global__ void __launch_bounds__(THREADS) expert_down(const __grid_constant__ ExpertRows p) {
    let_next_start();
    wait_for_previous();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, at = blockIdx.x * WARPS + warp, row = blockIdx.y;
    if (at >= p.hidden) return;
    const int* ids = p.ids + static_cast<size_t>(row) * p.count;
    float out = 0;
    int last = -1;
    for (int k = 0; k < p.count; k++) {  // in rising order of id
        int slot = -1;
        for (int j = 0; j < p.count; j++)
            if (ids[j] > last && (slot < 0 || ids[j] < ids[slot])) slot = j;
        if (slot < 0) break;
        last = ids[slot];
        const char* down = expert_row(p.down, p.down_kind, last, p.hidden, at, p.width);
        const float* act = p.acts + (static_cast<size_t>(row) * p.count + slot) * p.width;
        float sum = 0;
        for (int i = lane; i < p.width; i += WARP) sum = fmaf(load_row(down, p.down_kind, i), act[i], sum);
        out = fmaf(p.weights[static_cast<size_t>(row) * p.count + slot], warp_sum(sum), out);
    }
    if (lane == 0) p.out[static_cast<size_t>(row) * p.hidden + at] = out + (p.shared ? p.shared[static_cast<size_t>(row) * p.hidden + at] : 0.0f);
}
