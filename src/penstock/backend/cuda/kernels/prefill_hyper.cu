// Hyper-connections of many rows (spec §3.2, §3.3): as hyper.cu, with the mixing product on the tensor cores.
//
// Floor: streams of 8,192 rows are 537 MB; read and written by `leave_and_mix_rows`, read again by `collapse_rows`: 0.4 ms at 4.5 TB/s.
// The product, 24 outputs of 16,384 inputs, takes numbers as two tf32 parts (22 bits).
#include "halves.cuh"
#include "mma.cuh"
#include "sinkhorn.cuh"

constexpr int ROWS = 16;

struct LeaveRows {
    float* streams;             // [rows, 4, hidden]
    const float* y;             // [rows, hidden], or null: the streams stay as they are
    const float* coefficients;  // [rows, 24] of the sublayer that y comes from
    const void* fn;             // [24, 4 · hidden], F16 or F32; null: there is no mix behind
    float* partial;             // [splits, rows, 32]: 24 products, the sum of squares
    int fn_is_f32, outs, rows, hidden;
};

PS_DEVICE float tf32(float v) {
    u32 d;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(d) : "f"(v));
    return bits_float(d);
}
// c [16 × 8] += a [16 × 8] b [8 × 8], tf32
PS_DEVICE void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(float_bits(a[0])), "r"(float_bits(a[1])), "r"(float_bits(a[2])), "r"(float_bits(a[3])), "r"(float_bits(b0)),
          "r"(float_bits(b1)));
}

PS_DEVICE void load_four(const float* x, int at, int width, float (&v)[4]) {
    if (at + 4 <= width && width % 4 == 0) {
        const float4 f = *reinterpret_cast<const float4*>(x + at);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = at + i < width ? x[at + i] : 0.0f;
    }
}

// grid: (blocks, splits of the channels); shared memory: stages, sums, the split's part of fn.  A block has its part of the matrix for many
// sixteens of rows; a warp has 16 channels of all streams at a time: lane 4g + t channels 4t … of rows g and g + 8.  Four warps leave more
// of a small shared memory to the matrix.
template <bool F32_FN, int WARPS>
PS_DEVICE void leave_and_mix_rows(const LeaveRows& p) {
    constexpr int STAGED_BYTES = WARPS * 2 * 10 * WARP * 16, SUM_BYTES = WARPS * ROWS * (MIX + 1) * 4;
    extern __shared__ __align__(16) char staged[];
    using Sums = float[WARPS][ROWS][MIX + 1];
    Sums& sums = *reinterpret_cast<Sums*>(staged + STAGED_BYTES);
    char* matrix = staged + STAGED_BYTES + SUM_BYTES;  // [stream][out][channels of the split], padded so that eight outs lie in different banks
    constexpr int SIZE = F32_FN ? 4 : 2;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int blocks = (p.hidden + 15) / 16, each = (blocks + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * each, end = min(first + each, blocks), stride = each * 16 * SIZE + 8 * 4 * SIZE / 2;
    let_next_start();
    wait_for_previous();
    if (p.fn) {
        for (int line = warp; line < STREAMS * MIX; line += WARPS) {  // (stream, out)
            const size_t from = (static_cast<size_t>(line % MIX) * STREAMS + line / MIX) * p.hidden;
            for (int c = lane; c < each * 16; c += WARP) {
                const bool there = line % MIX < p.outs && first * 16 + c < p.hidden;
                if (F32_FN)
                    reinterpret_cast<float*>(matrix + line * stride)[c] = there ? static_cast<const float*>(p.fn)[from + first * 16 + c] : 0.0f;
                else
                    reinterpret_cast<u16*>(matrix + line * stride)[c] = there ? static_cast<const u16*>(p.fn)[from + first * 16 + c] : u16(0);
            }
        }
        __syncthreads();
    }
    for (int tile = blockIdx.x; tile * ROWS < p.rows; tile += gridDim.x) {
        int rows[2];
        float post[2][STREAMS], comb[2][STREAMS][STREAMS];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            rows[h] = tile * ROWS + g + 8 * h;
            const float4* c = reinterpret_cast<const float4*>(p.coefficients + static_cast<size_t>(min(rows[h], p.rows - 1)) * MIX);
            if (!p.y) continue;
            const float4 own = c[1];
            post[h][0] = own.x, post[h][1] = own.y, post[h][2] = own.z, post[h][3] = own.w;
#pragma unroll
            for (int i = 0; i < STREAMS; i++) {
                const float4 line = c[2 + i];
                comb[h][i][0] = line.x, comb[h][i][1] = line.y, comb[h][i][2] = line.z, comb[h][i][3] = line.w;
            }
        }
        // What a lane needs of the next 16 channels is on its way while these are worked on: [two stages][row half][streams, y].
        char* own = staged + (warp * 2 * 10 * WARP + lane) * 16;
        auto fetch = [&](int block, int stage) {
            const int channel = block * 16 + 4 * t;
#pragma unroll
            for (int k = 0; k < 10; k++) {
                const size_t row = min(rows[k / 5], p.rows - 1);
                const float* from = k % 5 < STREAMS ? p.streams + (row * STREAMS + k % 5) * p.hidden : p.y ? p.y + row * p.hidden : nullptr;
                char* to = own + (stage * 10 + k) * WARP * 16;
                if (from && block < end && p.hidden % 4 == 0 && channel < p.hidden) {
                    cp_async16(shared_address(to), from + channel);
                } else {
                    float v[4] = {0, 0, 0, 0};
                    if (from && block < end) load_four(from, channel, p.hidden, v);
                    *reinterpret_cast<float4*>(to) = {v[0], v[1], v[2], v[3]};
                }
            }
            cp_async_commit();
        };
        float acc[3][4] = {}, squares[2] = {0, 0};
        fetch(first + warp, 0);
        int stage = 0;
        for (int block = first + warp; block < end; block += WARPS, stage ^= 1) {
            fetch(block + WARPS, stage ^ 1);
            cp_async_wait<1>();
            const int channel = block * 16 + 4 * t;
            float v[STREAMS][2][4];  // [stream][row][channel]
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float* streams = p.streams + static_cast<size_t>(min(rows[h], p.rows - 1)) * STREAMS * p.hidden;
                float x[STREAMS + 1][4];
#pragma unroll
                for (int i = 0; i <= STREAMS; i++) {
                    const float4 f = *reinterpret_cast<const float4*>(own + (stage * 10 + h * 5 + i) * WARP * 16);
                    x[i][0] = f.x, x[i][1] = f.y, x[i][2] = f.z, x[i][3] = f.w;
                }
#pragma unroll
                for (int j = 0; j < STREAMS; j++) {
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        v[j][h][c] = x[j][c];
                        if (p.y) {
                            float sum = post[h][j] * x[STREAMS][c];
#pragma unroll
                            for (int i = 0; i < STREAMS; i++) sum = fmaf(comb[h][i][j], x[i][c], sum);
                            v[j][h][c] = sum;
                        }
                        squares[h] = fmaf(v[j][h][c], v[j][h][c], squares[h]);
                    }
                    if (p.y && rows[h] < p.rows) {
                        float* to = streams + static_cast<size_t>(j) * p.hidden + channel;
                        if (channel + 4 <= p.hidden && p.hidden % 4 == 0) {
                            *reinterpret_cast<float4*>(to) = {v[j][h][0], v[j][h][1], v[j][h][2], v[j][h][3]};
                        } else {
#pragma unroll
                            for (int c = 0; c < 4; c++)
                                if (channel + c < p.hidden) to[c] = v[j][h][c];
                        }
                    }
                }
            }
            if (!p.fn) continue;
#pragma unroll
            for (int j = 0; j < STREAMS; j++) {
                float high[2][4], rest[2][4];  // [which two channels]
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int r = 0; r < 4; r++) {
                        const float x = v[j][r % 2][2 * k + r / 2];
                        high[k][r] = tf32(x), rest[k][r] = tf32(x - high[k][r]);
                    }
#pragma unroll
                for (int n = 0; n < 3; n++) {
                    const char* from = matrix + (j * MIX + n * 8 + g) * stride + ((block - first) * 16 + 4 * t) * SIZE;
                    float fn[4];
                    if (F32_FN) {
                        const float4 w = *reinterpret_cast<const float4*>(from);
                        fn[0] = w.x, fn[1] = w.y, fn[2] = w.z, fn[3] = w.w;
                    } else {
                        const uint2 w = load8(from);
                        fn[0] = low_half(w.x), fn[1] = high_half(w.x), fn[2] = low_half(w.y), fn[3] = high_half(w.y);
                    }
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const float b0 = F32_FN ? tf32(fn[2 * k]) : fn[2 * k], b1 = F32_FN ? tf32(fn[2 * k + 1]) : fn[2 * k + 1];
                        mma_tf32(acc[n], high[k], b0, b1);
                        mma_tf32(acc[n], rest[k], b0, b1);
                        if (F32_FN) mma_tf32(acc[n], high[k], tf32(fn[2 * k] - b0), tf32(fn[2 * k + 1] - b1));
                    }
                }
            }
        }
        if (!p.fn) continue;
#pragma unroll
        for (int n = 0; n < 3; n++)
#pragma unroll
            for (int r = 0; r < 4; r++) sums[warp][g + r / 2 * 8][n * 8 + 2 * t + r % 2] = acc[n][r];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            squares[h] += __shfl_xor_sync(ALL, squares[h], 1);
            squares[h] += __shfl_xor_sync(ALL, squares[h], 2);
            if (t == 0) sums[warp][g + 8 * h][MIX] = squares[h];
        }
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * (MIX + 1); i += blockDim.x) {
            const int row = tile * ROWS + i / (MIX + 1), k = i % (MIX + 1);
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += sums[w][i / (MIX + 1)][k];
            if (row < p.rows) p.partial[(static_cast<size_t>(blockIdx.y) * p.rows + row) * PARTIAL + k] = sum;
        }
        __syncthreads();
    }
}
extern "C" __global__ void __launch_bounds__(256) leave_and_mix_rows_f16_8(const __grid_constant__ LeaveRows p) { leave_and_mix_rows<false, 8>(p); }
extern "C" __global__ void __launch_bounds__(256) leave_and_mix_rows_f32_8(const __grid_constant__ LeaveRows p) { leave_and_mix_rows<true, 8>(p); }
extern "C" __global__ void __launch_bounds__(128) leave_and_mix_rows_f16_4(const __grid_constant__ LeaveRows p) { leave_and_mix_rows<false, 4>(p); }
extern "C" __global__ void __launch_bounds__(128) leave_and_mix_rows_f32_4(const __grid_constant__ LeaveRows p) { leave_and_mix_rows<true, 4>(p); }

struct CollapseRows {
    const float* streams;  // [rows, 4, hidden]
    const float* partial;  // [splits, rows, 32]
    const float *base, *scale;  // [24], [3]
    float* coefficients;   // [rows, 24]
    const float* norm;     // [hidden]
    HalfRows out;
    int rows, hidden, splits, iterations;
    float eps, hc_eps;
};

PS_DEVICE float2 load_two(const float* x, int at, int width) {
    if (width % 2 == 0) return *reinterpret_cast<const float2*>(x + at);
    return {x[at], at + 1 < width ? x[at + 1] : 0.0f};
}

constexpr int CHUNKS = 4;  // of eight channels to a thread: at most 8,192 channels

// One block a row
extern "C" __global__ void __launch_bounds__(256) collapse_rows(const __grid_constant__ CollapseRows p) {
    __shared__ float pre[STREAMS], scratch[16], logits[16];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, row = blockIdx.x;
    const float* streams = p.streams + static_cast<size_t>(row) * STREAMS * p.hidden;
    let_next_start();
    wait_for_previous();
    for (int line = threadIdx.x * 32; line < STREAMS * p.hidden; line += 256 * 32) prefetch(streams + line);  // while the mix is worked out
    if (warp == 0) {
        float mix = 0;
        if (lane <= MIX)
#pragma unroll 4
            for (int s = 0; s < p.splits; s++) mix += p.partial[(static_cast<size_t>(s) * p.rows + row) * PARTIAL + lane];
        const float squares = __shfl_sync(ALL, mix, MIX);
        const int group = lane < 4 ? 0 : lane < 8 ? 1 : 2;
        float own = 0;
        if (lane < MIX) {
            own = mix / sqrtf(squares / static_cast<float>(STREAMS * p.hidden) + p.eps) * p.scale[group] + p.base[lane];
            if (group < 2) own = sigmoid(own) * (group ? 2.0f : 1.0f) + (group ? 0.0f : p.hc_eps);
        }
        if (lane < STREAMS) pre[lane] = own;
        float* out = p.coefficients + static_cast<size_t>(row) * MIX;
        if (lane < 8) out[lane] = own;
        const float logit = __shfl_sync(ALL, own, (lane & 15) + 8);
        __syncwarp();
        named_barrier_arrive(1, 256);
        sinkhorn(logit, p.iterations, p.hc_eps, lane, logits, out + 8);
    } else {
        named_barrier(1, 256);
    }
    __syncwarp();
    const float weights[STREAMS] = {pre[0], pre[1], pre[2], pre[3]};
    float x[CHUNKS][8], squares = 0, most = 0;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int chunk = threadIdx.x + 256 * k;
#pragma unroll
        for (int i = 0; i < 8; i++) x[k][i] = 0;
        if (chunk >= p.out.columns / 8) continue;
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const int c = chunk_column(chunk, i);
            if (c >= p.hidden) continue;
#pragma unroll
            for (int s = 0; s < STREAMS; s++) {
                const float2 v = load_two(streams + static_cast<size_t>(s) * p.hidden, c, p.hidden);
                x[k][i] = fmaf(weights[s], v.x, x[k][i]), x[k][i + 1] = fmaf(weights[s], v.y, x[k][i + 1]);
            }
            squares = fmaf(x[k][i], x[k][i], fmaf(x[k][i + 1], x[k][i + 1], squares));
            const float2 norm = load_two(p.norm, c, p.hidden);
            x[k][i] *= norm.x, x[k][i + 1] *= norm.y;
            most = fmaxf(most, fmaxf(fabsf(x[k][i]), fabsf(x[k][i + 1])));
        }
    }
    const RowPower power = row_power(squares, most, p.hidden, true, p.eps, scratch);
    if (threadIdx.x == 0) p.out.scales[row] = power.down;
#pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
        const int chunk = threadIdx.x + 256 * k;
        if (chunk >= p.out.columns / 8) continue;
#pragma unroll
        for (int i = 0; i < 8; i++) x[k][i] *= power.up;
        store_chunk(p.out, row, chunk, x[k]);
    }
}
