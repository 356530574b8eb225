// Experts that come and go, and what crosses between the card and the host in the middle of a layer.
#include "repack.cuh"
#include "routing.cuh"

// ── an expert on its way to its slot ─────────────────────────────────────────────────────────────────────────────────

#ifdef UP_FORMAT
// FP4 has its scales elsewhere: its bytes of a row, and of the row's scales.
#ifdef SCALES_APART
PS_DEVICE long long code_bytes(const Repack& p) { return p.row_bytes / 17 * 16; }
PS_DEVICE long long scale_bytes(const Repack& p) { return p.row_bytes / 17; }
#else
PS_DEVICE long long code_bytes(const Repack& p) { return p.row_bytes; }
PS_DEVICE long long scale_bytes(const Repack&) { return 0; }
#endif

// One warp: a cell of a tile whose rows `first` to `count` lie at `codes`, and their scales where they lie apart → out
template <int FORMAT>
PS_DEVICE void lay_out_cell(const Repack& p, const u8* codes, const u8* scales, int first, int count, int cell, u8* out) {
    const StoredRows rows(codes, code_bytes(p), first, count);
#ifdef SCALES_APART
    lay_out_fp4(rows, StoredRows(scales, scale_bytes(p), first, count), cell, out);
#else
    lay_out<FORMAT>(rows, cell, out);
#endif
}

// One that a copy has brought near: gate, up and down as they are stored → cells.
struct Expert {
    Repack gate, up, down;
    const u8* scales[3];       // SCALES_APART: of gate, up and down
    u32* arrived;              // counts blocks that are done
    int up_block, down_block;  // the first of each
};

template <int FORMAT>
PS_DEVICE void repack_part(const Repack& p, const u8* scales, int block) {
    const long long index = static_cast<long long>(block) * (256 / WARP) + threadIdx.x / WARP;
    if (index >= static_cast<long long>(p.tiles) * p.cells) return;
    const int tile = static_cast<int>(index / p.cells), cell = static_cast<int>(index % p.cells);
    lay_out_cell<FORMAT>(p, p.raw, scales, tile * 16, p.rows, cell, cell_at(p, tile, cell, cell_bytes(FORMAT)));
}

// Floor: 7 MB read and written, 4 µs; over PCIe they took 130.
extern "C" __global__ void __launch_bounds__(256) repack_expert(const __grid_constant__ Expert p) {
    const int block = blockIdx.x;
    if (block < p.up_block) repack_part<UP_FORMAT>(p.gate, p.scales[0], block);
    else if (block < p.down_block) repack_part<UP_FORMAT>(p.up, p.scales[1], block - p.up_block);
    else repack_part<DOWN_FORMAT>(p.down, p.scales[2], block - p.down_block);
    __syncthreads();
    if (threadIdx.x == 0) count_up_only(p.arrived);
}

// Those that the card brings by itself, a tile of rows at a time: as they are stored into shared memory, where the copies of the
// next tiles are under way, and from there into their cells.  Floor: the link, 7 MB in 143 µs.
constexpr int COMING = 1 << 30;  // beside a slot: its expert has to be brought there first

struct Pull {
    Repack gate, up, down;     // to the first slot
    size_t pair, single;       // bytes of a slot: of gate and up together, of down
    const u64* sources;        // [experts, 3, or 6 with scales]: where they lie in the host's memory
    int experts, stages, stage_bytes, scales_at;  // scales_at: in a stage, where the scales begin
};

// At the beginning of shared memory; stages follow.
struct Comings {
    u64 bars[8];
    int count, good, place[MAX_EXPERTS], expert[MAX_EXPERTS];
};
constexpr int COMINGS = 3200;
static_assert(sizeof(Comings) <= COMINGS);

// Bytes that a copy may take, around some that lie anywhere: whole pieces of 16.
struct Stretch {
    const char* from;
    u32 bytes, skip;
    PS_DEVICE Stretch(u64 at, long long count)
        : from(reinterpret_cast<const char*>(at & ~15ull)), bytes(static_cast<u32>((at + count + 15 & ~15ull) - (at & ~15ull))),
          skip(static_cast<u32>(at & 15)) {}
};

// All threads of a block: tiles block, block + blocks, … of the experts that `places` says are coming.
PS_DEVICE bool pull(const Pull& p, Comings& c, int block, int blocks) {
    char* memory = reinterpret_cast<char*>(&c) + COMINGS;
    const Copiers all = block_copiers();
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x < WARP) {  // all blocks in the same order
        int count = 0;
        for (int first = 0; first < p.experts; first += WARP) {
            const int expert = first + threadIdx.x, place = expert < p.experts ? c.place[expert] : -1;
            const u32 coming = __ballot_sync(ALL, place >= 0 && place & COMING);
            if (coming >> threadIdx.x & 1) c.expert[count + __popc(coming & ((1u << threadIdx.x) - 1))] = expert;
            count += __popc(coming);
        }
        if (threadIdx.x == 0) {
            c.count = count;
            for (int i = 0; i < p.stages; i++) barrier_init(c.bars + i, all.arrivals());
            barrier_init_visible();
        }
    }
    __syncthreads();
    const int tiles = p.gate.tiles + p.up.tiles + p.down.tiles, units = c.count * tiles;
    struct Unit {
        const Repack* matrix;
        u64 codes, scales;
        int part, expert, tile, rows;
    };
    auto find = [&](int unit) {
        Unit u;
        u.expert = c.expert[unit / tiles], u.tile = unit % tiles;
        u.part = u.tile < p.gate.tiles ? 0 : u.tile < p.gate.tiles + p.up.tiles ? 1 : 2;
        if (u.part > 0) u.tile -= p.gate.tiles;
        if (u.part > 1) u.tile -= p.up.tiles;
        u.matrix = u.part == 0 ? &p.gate : u.part == 1 ? &p.up : &p.down;
        u.rows = min(16, u.matrix->rows - u.tile * 16);
#ifdef SCALES_APART
        const u64* parts = p.sources + u.expert * 6 + u.part;
        u.scales = parts[3] + u.tile * 16 * scale_bytes(*u.matrix);
#else
        const u64* parts = p.sources + u.expert * 3 + u.part;
        u.scales = 0;
#endif
        u.codes = parts[0] + u.tile * 16 * code_bytes(*u.matrix);
        return u;
    };
    auto ask = [&](int unit, int stage) {
        if (!all.copies()) return;
        const Unit u = find(unit);
        char* to = memory + stage * p.stage_bytes;
        const Stretch codes(u.codes, u.rows * code_bytes(*u.matrix)), scales(u.scales, u.rows * scale_bytes(*u.matrix));
        all.announce(c.bars + stage, codes.bytes + scales.bytes);
        all.copy(to, codes.from, codes.bytes, c.bars + stage);
        if (scales.bytes) all.copy(to + p.scales_at, scales.from, scales.bytes, c.bars + stage);
        all.close(c.bars + stage);
    };
    int asked = block, stage = 0;
    u32 parity = 0;
    for (int first = 0; first < p.stages && asked < units; first++, asked += blocks) ask(asked, first);
    for (int unit = block; unit < units; unit += blocks) {
        const Unit u = find(unit);
        const u8* from = reinterpret_cast<const u8*>(memory) + stage * p.stage_bytes;
        const u8 *codes = from + Stretch(u.codes, 0).skip, *scales = from + p.scales_at + Stretch(u.scales, 0).skip;
        const size_t slot = static_cast<size_t>(c.place[u.expert] & ~COMING);
        barrier_wait(c.bars + stage, parity);
        for (int cell = warp; cell < u.matrix->cells; cell += 256 / WARP) {
            if (u.part < 2)
                lay_out_cell<UP_FORMAT>(*u.matrix, codes, scales, 0, u.rows, cell,
                                        cell_at(*u.matrix, u.tile, cell, cell_bytes(UP_FORMAT)) + slot * p.pair);
            else
                lay_out_cell<DOWN_FORMAT>(*u.matrix, codes, scales, 0, u.rows, cell,
                                          cell_at(*u.matrix, u.tile, cell, cell_bytes(DOWN_FORMAT)) + slot * p.single);
        }
        __syncthreads();  // all have read what the next copy overwrites
        if (asked < units) ask(asked, stage), asked += blocks;
        if (++stage == p.stages) stage = 0, parity ^= 1;
    }
#if BULK
    asm volatile("fence.proxy.async.global;" ::: "memory");  // bulk copies will read them
#endif
    return block < units;
}

// By itself, for what places in the card's memory say: to be measured and tested.
extern "C" __global__ void __launch_bounds__(256) pull_experts(const __grid_constant__ Pull p, const int* places) {
    extern __shared__ __align__(128) char memory[];
    Comings& comings = *reinterpret_cast<Comings*>(memory);
    for (int i = threadIdx.x; i < p.experts; i += blockDim.x) comings.place[i] = places[i];
    __syncthreads();
    pull(p, comings, blockIdx.x, gridDim.x);
}
#endif

// ── a layer's rows to the host, and what it has made of them back ────────────────────────────────────────────────────
//
// A turn is a number that both sides count.  The card writes it behind what it sends, the host behind what it answers, and
// the card waits for that: so all layers can be launched at once, and nobody has to be launched in the middle of one.  The host
// answers twice: with the experts' places, as soon as it has decided, and with the sum of those that it has computed.

constexpr int LANES = 4;              // streams that experts come by
constexpr u32 GIVEN_UP = 0xffffffff;  // instead of a turn: nobody will answer

struct Words {
    u32* turn;              // the card's: turns so far
    u32* blocks;            // the card's, zero between launches
    u32* sent;              // the host's: the latest turn of the card
    const u32* answered;    // the host's: the latest turn that has places, that has the sum, then what has to have arrived by each lane
    u64* times;             // the host's: [2, 5] by turn: when it was sent, when the card began to wait, had places, experts, the sum
};

PS_DEVICE u64 now() {  // nanoseconds
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}
PS_DEVICE u64* times_of(const Words& w, u32 turn) { return w.times + turn % 2 * 5; }

#ifndef UP_FORMAT
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

#else
struct Receive {
    Words words;
    Pull pull;
    const u32* arrived;      // the card's: [LANES], what has come so far
    const int* from_places;  // the host's: [experts]
    const float* from;       // [rows, width]
    int* places;
    float* to;
    int experts, width, rows;
};

PS_DEVICE u32 load_host(const void* p) {  // whatever a cache may think it holds
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// One thread: until the host has answered.  False: it will not.
PS_DEVICE bool wait_for_host(const u32* answered, u32 turn) {
    u32 seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(answered) : "memory");
    while (seen != turn && seen != GIVEN_UP);
    return seen == turn;
}

// A block for the places, which also waits for experts that come by themselves; a block a row, for the sum; the others bring
// what else is coming.
extern "C" __global__ void __launch_bounds__(256) receive_rows(const __grid_constant__ Receive p) {
    extern __shared__ __align__(128) char memory[];
    Comings& comings = *reinterpret_cast<Comings*>(memory);
    wait_for_previous();
    const u32 turn = __ldcg(p.words.turn);
    u64* times = times_of(p.words, turn);
    const int row = static_cast<int>(blockIdx.x) - 1, puller = row - p.rows;
    const bool first = row < 0, sum = row >= 0 && puller < 0;
    if (threadIdx.x == 0) {
        if (first) times[1] = now();
        comings.good = wait_for_host(p.words.answered + (sum ? 1 : 0), turn);
        if (first) times[2] = now();
        if (sum && row == 0) times[4] = now();
    }
    __syncthreads();
    if (sum) {
        const size_t at = static_cast<size_t>(row) * p.width;
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.to[at + i] = bits_float(load_host(p.from + at + i));
        return;
    }
    for (int i = threadIdx.x; i < p.experts; i += blockDim.x)
        comings.place[i] = comings.good ? static_cast<int>(load_host(p.from_places + i)) : -1;
    __syncthreads();
    bool waited = first;
    if (first) {
        for (int i = threadIdx.x; i < p.experts; i += blockDim.x) {
            const int place = comings.place[i];
            p.places[i] = place < 0 ? place : place & ~COMING;
        }
        if (threadIdx.x < LANES && comings.good) {
            const u32 wanted = load_host(p.words.answered + 2 + threadIdx.x);
            u32 seen;
            do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(p.arrived + threadIdx.x) : "memory");
            while (static_cast<int>(seen - wanted) < 0);
#if BULK
            asm volatile("fence.proxy.async.global;" ::: "memory");  // bulk copies will read them
#endif
        }
    } else {
        waited = pull(p.pull, comings, puller, static_cast<int>(gridDim.x) - 1 - p.rows);
    }
    __syncthreads();
    if (threadIdx.x == 0 && waited) times[3] = now();  // whoever ends last writes last
}
#endif
