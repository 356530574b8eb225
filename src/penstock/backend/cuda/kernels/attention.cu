// Attention of one token a row over the raw window, compressed rows and the sink (spec §3.10): every key row is also the value.
//
// One row, 640 keys: 640 KB of keys (0.15 µs at 4.5 TB/s), 84 MFLOP.  A block has 16 heads and a share of the keys, 32 at a time on the
// tensor cores: keys are exact f16, queries and weights go as high and low f16 parts, so that 22 bits of them count.  `join` adds the
// shares in a fixed order, adds the sink and turns the result back by the query's position.
#include "formats.cuh"

constexpr int DIM = 512, ROPE = 64, HEADS = 16, KEYS = 32, WARPS = 8;
constexpr int KEY_STRIDE = DIM * 2 + 16;   // bytes; 8 rows of 16 bytes lie in different banks
constexpr int WEIGHT_STRIDE = KEYS * 2 + 16;

struct Attention {
    const float* q;          // [rows, heads, 512] before norm and rotation
    const int* picks;        // [rows, pick_stride]: compressed rows to see, or null: all visible ones
    const int* pick_counts;  // [rows]
    const int* positions;          // [rows]
    const char* const* states;     // [rows]: the memory of a row's sequence
    const float2* turns;           // [rows, 32]: cosine and sine of a row's position
    const float* sinks;            // [heads]
    float* partial;  // [rows, splits, heads, 512]
    float* tops;     // [rows, splits, heads, 2]: largest score, sum of weights
    float* out;      // [rows, heads · 512] or null
    u8* digits;      // images of the output groups [groups][InputPlan {columns, rows, DIGITS}], or null
    RowsAt window, compressed;  // [capacity, 512] f16, position p at p % capacity; [rows, 512] f16, with a ratio
    int heads, rows, splits, window_length, ratio, pick_stride, group_heads;
    float eps;
};

PS_DEVICE void ldmatrix(u32 (&d)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(p)));
}
PS_DEVICE void ldmatrix_turned(u32 (&d)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(shared_address(p)));
}
PS_DEVICE u32 pack_halves(float a, float b) { return float_to_half(a) | static_cast<u32>(float_to_half(b)) << 16; }

// How many keys a row sees: window first, then compressed rows.
PS_DEVICE int window_keys(const Attention& p, int row) { return min(p.positions[row] + 1, p.window_length); }
PS_DEVICE int compressed_keys(const Attention& p, int row) {
    return !p.ratio ? 0 : p.picks ? p.pick_counts[row] : (p.positions[row] + 1) / p.ratio;
}

extern "C" __global__ void __launch_bounds__(256) attend(const __grid_constant__ Attention p) {
    extern __shared__ __align__(128) char shared[];
    char* q_parts = shared;                              // [high, low][steps 32][lanes][16 bytes], as the tensor cores want it
    char* keys = q_parts + 2 * 32 * 512;                 // [32][KEY_STRIDE]
    char* weights = keys + KEYS * KEY_STRIDE;            // [high, low][16][WEIGHT_STRIDE]
    float* scores = reinterpret_cast<float*>(weights + 2 * HEADS * WEIGHT_STRIDE);  // [halves of the dims 2][16][32 + 1]
    float* state = scores + 2 * HEADS * (KEYS + 1);      // [16] top, [16] sum, [16] factor
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int head0 = blockIdx.x * HEADS, split = blockIdx.y, row = blockIdx.z;
    let_next_start();
    wait_for_previous();
    const int position = p.positions[row], near = window_keys(p, row), count = near + compressed_keys(p, row);
    const int chunks = (count + KEYS - 1) / KEYS, each = (chunks + p.splits - 1) / p.splits;
    const int first = split * each, end = min(first + each, chunks);
    const size_t share = (static_cast<size_t>(row) * p.splits + split) * p.heads + head0;
    if (first >= end) {
        if (threadIdx.x < HEADS) p.tops[(share + threadIdx.x) * 2] = -INFINITY, p.tops[(share + threadIdx.x) * 2 + 1] = 0;
        return;
    }
    if (threadIdx.x < HEADS) state[threadIdx.x] = -INFINITY, state[HEADS + threadIdx.x] = 0;
    const char* window = p.states[row] + p.window.at;
    const char* far = p.states[row] + p.compressed.at;
    uint4 loaded[4][2];  // four keys a warp
    const int capacity = p.window.capacity, ring = (position - near + 1) % capacity;  // where the first key of the window is
    auto load_keys = [&](int chunk) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int key = chunk * KEYS + warp * 4 + k;
            const char* from = nullptr;
            if (key < near) from = window + static_cast<size_t>(ring + key - (ring + key >= capacity ? capacity : 0)) * p.window.apart;
            else if (key < count)
                from = far + static_cast<size_t>(p.picks ? p.picks[static_cast<size_t>(row) * p.pick_stride + key - near] : key - near) * p.compressed.apart;
#pragma unroll
            for (int i = 0; i < 2; i++) loaded[k][i] = from ? load16(from + (i * 32 + lane) * 16) : uint4{0, 0, 0, 0};
        }
    };
    load_keys(first);  // on their way while the queries are made
    // Queries: norm, rotation, scale 512^-0.5; lane l has dims 16 l ….
#pragma unroll 1  // little code: fetching it takes longer than running it
    for (int h = warp; h < HEADS; h += WARPS) {
        const float* q = p.q + (static_cast<size_t>(row) * p.heads + head0 + h) * DIM + lane * 16;
        float v[16], squares = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float4 f = reinterpret_cast<const float4*>(q)[i];
            v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
        }
#pragma unroll
        for (int i = 0; i < 16; i++) squares = fmaf(v[i], v[i], squares);
        const float factor = 1.0f / sqrtf(warp_sum(squares) / DIM + p.eps);
        if (lane >= 28) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 turn = p.turns[row * (ROPE / 2) + (lane - 28) * 8 + i];
                const float a = v[2 * i], b = v[2 * i + 1];
                v[2 * i] = a * turn.x - b * turn.y, v[2 * i + 1] = a * turn.y + b * turn.x;
            }
        }
        // Step `lane` of 16 dims: register 0 has dims 2t, 2t + 1 of heads < 8, register 2 dims 2t + 8, …; 1 and 3 heads ≥ 8.
        const float scale = factor * 0.044194173824159216f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
            const u16 ha = float_to_half(a), hb = float_to_half(b);
            char* to = q_parts + lane * 512 + (h % 8 * 4 + i % 4) * 16 + (i / 4 * 2 + h / 8) * 4;
            *reinterpret_cast<u32*>(to) = ha | static_cast<u32>(hb) << 16;
            *reinterpret_cast<u32*>(to + 32 * 512) = pack_halves((a - half_to_float(ha)) , (b - half_to_float(hb)));
        }
    }
    float o[8][4] = {};  // dims 64 warp + 8 n …, heads g and g + 8
    for (int chunk = first; chunk < end; chunk++) {
        if (chunk > first) __syncthreads();  // all are done with the keys before
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *reinterpret_cast<uint4*>(keys + (warp * 4 + k) * KEY_STRIDE + (i * 32 + lane) * 16) = loaded[k][i];
        if (chunk + 1 < end) load_keys(chunk + 1);
        __syncthreads();
        {  // scores: warp % 4 has eight keys, warp / 4 half of the dims
            float c[4] = {}, low[4] = {};
            const int n = warp % 4, step0 = warp / 4 * 16;
#pragma unroll 4
            for (int s = 0; s < 16; s += 2) {
                u32 b[4];  // two steps
                ldmatrix(b, keys + (n * 8 + lane % 8) * KEY_STRIDE + (step0 + s) * 32 + lane / 8 * 16);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint4 h = load16(q_parts + (step0 + s + k) * 512 + lane * 16);
                    const uint4 l = load16(q_parts + 32 * 512 + (step0 + s + k) * 512 + lane * 16);
                    const u32 high[4] = {h.x, h.y, h.z, h.w}, rest[4] = {l.x, l.y, l.z, l.w};
                    mma_halves(c, high, {b[2 * k], b[2 * k + 1]});
                    mma_halves(low, rest, {b[2 * k], b[2 * k + 1]});
                }
            }
            float* to = scores + warp / 4 * HEADS * (KEYS + 1) + n * 8 + 2 * t;
            to[g * (KEYS + 1)] = c[0] + low[0], to[g * (KEYS + 1) + 1] = c[1] + low[1];
            to[(g + 8) * (KEYS + 1)] = c[2] + low[2], to[(g + 8) * (KEYS + 1) + 1] = c[3] + low[3];
        }
        __syncthreads();
#pragma unroll 1
        for (int h = warp * 2; h < warp * 2 + 2; h++) {  // weights: a head at a time, a key a lane
            float s = scores[h * (KEYS + 1) + lane] + scores[(HEADS + h) * (KEYS + 1) + lane];
            if (chunk * KEYS + lane >= count) s = -INFINITY;
            const float before = state[h], top = fmaxf(before, warp_max(s)), w = expf(s - top);
            const float sum = warp_sum(w);
            __syncwarp();  // all have read the state
            if (lane == 0) {
                const float factor = expf(before - top);
                state[h] = top, state[HEADS + h] = state[HEADS + h] * factor + sum, state[2 * HEADS + h] = factor;
            }
            const u16 high = float_to_half(w);
            *reinterpret_cast<u16*>(weights + h * WEIGHT_STRIDE + lane * 2) = high;
            *reinterpret_cast<u16*>(weights + (HEADS + h) * WEIGHT_STRIDE + lane * 2) = float_to_half(w - half_to_float(high));
        }
        __syncthreads();
        const float f0 = state[2 * HEADS + g], f1 = state[2 * HEADS + g + 8];
#pragma unroll
        for (int n = 0; n < 8; n++) o[n][0] *= f0, o[n][1] *= f0, o[n][2] *= f1, o[n][3] *= f1;
#pragma unroll
        for (int k = 0; k < 2; k++) {  // sixteen keys
            u32 high[4], rest[4];
            const char* w = weights + lane % 16 * WEIGHT_STRIDE + k * 32 + lane / 16 * 16;
            ldmatrix(high, w);
            ldmatrix(rest, w + HEADS * WEIGHT_STRIDE);
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                u32 b[4];  // two eights of dims
                ldmatrix_turned(b, keys + (k * 16 + lane % 16) * KEY_STRIDE + (warp * 64 + n * 8 + lane / 16 * 8) * 2);
                mma_halves(o[n], high, {b[0], b[1]});
                mma_halves(o[n], rest, {b[0], b[1]});
                mma_halves(o[n + 1], high, {b[2], b[3]});
                mma_halves(o[n + 1], rest, {b[2], b[3]});
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float* to = p.partial + (share + g + 8 * h) * DIM + warp * 64 + n * 8 + 2 * t;
            *reinterpret_cast<float2*>(to) = {o[n][2 * h], o[n][2 * h + 1]};
        }
    if (threadIdx.x < HEADS)
        p.tops[(share + threadIdx.x) * 2] = state[threadIdx.x], p.tops[(share + threadIdx.x) * 2 + 1] = state[HEADS + threadIdx.x];
}

// A head of a row: two warps, a cell of 256 dims each, eight dims a lane.
extern "C" __global__ void __launch_bounds__(64) join_shares(const __grid_constant__ Attention p) {
    const int head = blockIdx.x, row = blockIdx.y, cell = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    let_next_start();
    wait_for_previous();
    const float sink = p.sinks[head];
    // Lane s has share s; those that saw no key come last and are left out.
    const int count = window_keys(p, row) + compressed_keys(p, row), chunks = (count + KEYS - 1) / KEYS;
    const int each = (chunks + p.splits - 1) / p.splits, shares = (chunks + each - 1) / each;
    const size_t base = static_cast<size_t>(row) * p.splits * p.heads + head;
    float2 own = {-INFINITY, 0};
    if (lane < shares) own = *reinterpret_cast<const float2*>(p.tops + (base + static_cast<size_t>(lane) * p.heads) * 2);
    const float top = fmaxf(sink, warp_max(own.x)), factor = expf(own.x - top);
    const float sum = expf(sink - top) + warp_sum(own.y * factor);
    float v[8] = {};
#pragma unroll 5
    for (int s = 0; s < shares; s++) {
        const float4* from = reinterpret_cast<const float4*>(p.partial + (base + static_cast<size_t>(s) * p.heads) * DIM + cell * CELL + lane * 8);
        const float4 a = from[0], b = from[1];
        const float o[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        const float f = __shfl_sync(ALL, factor, s);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = fmaf(o[i], f, v[i]);
    }
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= inverse;
    const int rotary = cell * CELL + lane * 8 - (DIM - ROPE);
    if (rotary >= 0) {  // back by the query's position
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 turn = p.turns[row * (ROPE / 2) + rotary / 2 + i];
            const float a = v[2 * i], b = v[2 * i + 1];
            v[2 * i] = a * turn.x + b * turn.y, v[2 * i + 1] = b * turn.x - a * turn.y;
        }
    }
    if (p.out) {
        float4* to = reinterpret_cast<float4*>(p.out + (static_cast<size_t>(row) * p.heads + head) * DIM + cell * CELL + lane * 8);
        to[0] = {v[0], v[1], v[2], v[3]}, to[1] = {v[4], v[5], v[6], v[7]};
    }
    if (p.digits) {
        const InputPlan plan = {p.group_heads * DIM, p.rows, DIGITS};
        char* image = reinterpret_cast<char*>(p.digits) + static_cast<size_t>(head / p.group_heads) * plan.bytes();
        store_digits(image, plan, row, head % p.group_heads * 2 + cell, lane, to_digits(v));
    }
}
