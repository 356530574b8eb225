// Experts that come and go, and what crosses between the card and the host in the middle of a layer.
#include "repack.cuh"
#include "routing.cuh"

// ── an expert on its way to its slot ─────────────────────────────────────────────────────────────────────────────────

#ifdef UP_FORMAT
// Gate, up and down as they are stored → cells.  Floor: 7 MB read and written, 4 µs; over PCIe they took 130.
struct Expert {
    Repack gate, up, down;
    const u8* scales[3];       // SCALES_APART: of gate, up and down
    u32* arrived;              // counts blocks that are done
    int up_block, down_block;  // the first of each
};

#ifdef SCALES_APART
// FP4: two neighbours to a byte, the first in the low half, and the exponents of every 32 elsewhere → cells of MXFP4.
PS_DEVICE void repack_fp4(const Repack& p, const u8* scales, long long index) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    if (index >= static_cast<long long>(p.tiles) * p.cells) return;
    const int tile = static_cast<int>(index / p.cells), cell = static_cast<int>(index % p.cells);
    const long long blocks = p.row_bytes / 17;  // of a row; p has the bytes of MXFP4's
    u8* out = p.out + (static_cast<size_t>(tile) * p.tile_cells + p.first_cell + cell) * cell_bytes(MXFP4);
    u32* out32 = reinterpret_cast<u32*>(out);
    for (int i = 0; i < STEPS; i++) {
        const long long block = static_cast<long long>(cell) * STEPS + i;
        u32 words[2] = {0, 0};
        for (int half = 0; half < 2; half++) {
            const long long row = static_cast<long long>(tile) * 16 + g + 8 * half;
            const bool there = row < p.rows && block < blocks;
            for (int pair = 0; pair < 4; pair++) {  // columns 8 t + 2 pair and the next
                const u32 two = there ? p.raw[(row * blocks + block) * 16 + 4 * t + pair] : 0u;
                words[pair / 2] |= two << (half * 16 + pair % 2 * 8);
            }
            if (t == half) out[2048 + g * 16 + half * 8 + i] = there ? scales[row * blocks + block] : 0;
        }
        for (int k = 0; k < 2; k++) out32[i / 2 * 128 + lane * 4 + i % 2 * 2 + k] = words[k];
    }
}
#endif

extern "C" __global__ void __launch_bounds__(256) repack_expert(const __grid_constant__ Expert p) {
    const int block = blockIdx.x, warp = threadIdx.x / WARP;
    auto cell = [&](int first) { return static_cast<long long>(block - first) * (256 / WARP) + warp; };
#ifdef SCALES_APART
    if (block < p.up_block) repack_fp4(p.gate, p.scales[0], cell(0));
    else if (block < p.down_block) repack_fp4(p.up, p.scales[1], cell(p.up_block));
    else repack_fp4(p.down, p.scales[2], cell(p.down_block));
#else
    if (block < p.up_block) repack<UP_FORMAT>(p.gate, cell(0));
    else if (block < p.down_block) repack<UP_FORMAT>(p.up, cell(p.up_block));
    else repack<DOWN_FORMAT>(p.down, cell(p.down_block));
#endif
    __syncthreads();
    if (threadIdx.x == 0) count_up_only(p.arrived);
}
#endif

// ── a layer's rows to the host, and what it has made of them back ────────────────────────────────────────────────────
//
// A turn is a number that both sides count.  The card writes it behind what it sends, the host behind what it answers, and
// the card waits for that: so all layers can be launched at once, and nobody has to be launched in the middle of one.

constexpr int LANES = 4;              // streams that experts come by
constexpr u32 GIVEN_UP = 0xffffffff;  // instead of a turn: nobody will answer

struct Words {
    u32* turn;              // the card's: turns so far
    u32* blocks;            // the card's, zero between launches
    u32* sent;              // the host's: the latest turn of the card
    const u32* answered;    // the host's: the latest turn that it has answered, then what has to have arrived by each lane
    u64* times;             // the host's: [2, 4] by turn: when it was sent, when the card began to wait, had the answer, had the experts
};

struct Send {
    Routing routing, next;  // next: of the layer behind, whose choice for the first row is likely to be this
    Words words;
    const char* x;        // [rows] floats
    long long* ids;       // the host's: [rows, count]
    float* weights;       // [rows, count]
    long long* likely;    // [count]
    float* to;            // [rows, width]
    int x_stride, width, rows, last;  // x_stride: bytes; last: of the launches of a turn
};

PS_DEVICE u64 now() {  // nanoseconds
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
PS_DEVICE u64* times_of(const Words& w, u32 turn) { return w.times + turn % 2 * 4; }

// The first block chooses, as the experts' kernel will do it; then a block a row; then perhaps one for the next layer's choice.
extern "C" __global__ void __launch_bounds__(512) send_rows(const __grid_constant__ Send p) {
    __shared__ __align__(16) Choice choice;
    __shared__ __align__(16) float scratch[2 * MAX_ROWS * MAX_EXPERTS];
    wait_for_previous();
    if (const int row = blockIdx.x - 1; row >= 0 && row < p.rows) {
        const float* x = reinterpret_cast<const float*>(p.x + static_cast<size_t>(row) * p.x_stride);
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.to[static_cast<size_t>(row) * p.width + i] = x[i];
    } else {
        const bool own = row < 0;
        const Routing& routing = own ? p.routing : p.next;
        choose(routing, own ? p.rows : 1, choice, scratch);
        const int count = routing.count, of = threadIdx.x / MAX_COUNT, k = threadIdx.x % MAX_COUNT;
        if (k < count && of < (own ? p.rows : 1)) {
            (own ? p.ids : p.likely)[of * count + k] = choice.chosen.ids[of][k];
            if (own) p.weights[of * count + k] = choice.chosen.weights[of][k];
        }
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x > 0 || count_up(p.words.blocks) != gridDim.x - 1) return;
    *p.words.blocks = 0;
    if (!p.last) return;
    const u32 turn = (*p.words.turn + 1) % GIVEN_UP;
    *p.words.turn = turn;
    times_of(p.words, turn)[0] = now();
    asm volatile("fence.acq_rel.sys;\n st.release.sys.global.u32 [%0], %1;" ::"l"(p.words.sent), "r"(turn) : "memory");
}

struct Receive {
    Words words;
    const u32* arrived;      // the card's: [LANES], what has come so far
    const int* from_places;  // the host's: [experts]
    const float* from;       // [rows, width]
    int* places;
    float* to;
    int experts, width;
};

PS_DEVICE u32 load_host(const void* p) {  // whatever a cache may think it holds
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// One thread: until the host has answered.  False: it will not.
PS_DEVICE bool wait_for_host(const Words& w, u32 turn) {
    u32 seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(w.answered) : "memory");
    while (seen != turn && seen != GIVEN_UP);
    return seen == turn;
}

// A block a row, and one for the places, which also waits for experts that are on their way.
extern "C" __global__ void __launch_bounds__(256) receive_rows(const __grid_constant__ Receive p) {
    __shared__ bool good;
    wait_for_previous();
    const u32 turn = __ldcg(p.words.turn);
    u64* times = times_of(p.words, turn);
    const bool first = blockIdx.x == 0;
    if (threadIdx.x == 0) {
        if (first) times[1] = now();
        good = wait_for_host(p.words, turn);
        if (first) times[2] = now();
    }
    __syncthreads();
    if (!first) {
        const size_t at = static_cast<size_t>(blockIdx.x - 1) * p.width;
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.to[at + i] = bits_float(load_host(p.from + at + i));
        return;
    }
    for (int i = threadIdx.x; i < p.experts; i += blockDim.x)
        p.places[i] = good ? static_cast<int>(load_host(p.from_places + i)) : -1;
    if (threadIdx.x < LANES && good) {
        const u32 wanted = load_host(p.words.answered + 1 + threadIdx.x);
        u32 seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(p.arrived + threadIdx.x) : "memory");
        while (static_cast<int>(seen - wanted) < 0);
#if BULK
        asm volatile("fence.proxy.async.global;" ::: "memory");  // bulk copies will read them
#endif
    }
    __syncthreads();
    if (threadIdx.x == 0) times[3] = now();
}
