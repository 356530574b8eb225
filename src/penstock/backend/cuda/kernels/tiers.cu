// Experts that come and go, and what crosses between the card and the host in the middle of a layer.
#include "repack.cuh"
#include "routing.cuh"

// ── an expert on its way to its slot ─────────────────────────────────────────────────────────────────────────────────

#ifdef UP_FORMAT
// Gate, up and down as they are stored → cells.  Floor: 7 MB read and written, 4 µs; over PCIe they took 130.
struct Expert {
    Repack gate, up, down;
    int up_block, down_block;  // the first of each
};

extern "C" __global__ void __launch_bounds__(256) repack_expert(const __grid_constant__ Expert p) {
    const int block = blockIdx.x, warp = threadIdx.x / WARP;
    auto cell = [&](int first) { return static_cast<long long>(block - first) * (256 / WARP) + warp; };
    if (block < p.up_block) repack<UP_FORMAT>(p.gate, cell(0));
    else if (block < p.down_block) repack<UP_FORMAT>(p.up, cell(p.up_block));
    else repack<DOWN_FORMAT>(p.down, cell(p.down_block));
}
#endif

// ── a layer's rows to the host, and what it has made of them back ────────────────────────────────────────────────────

struct Send {
    Routing routing;
    const char* x;        // [rows] floats
    long long* ids;       // the host's: [rows, count]
    float* weights;       // [rows, count]
    float* to;            // [rows, width]
    int x_stride, width, rows;  // x_stride: bytes
};

// The first block chooses, as the experts' kernel will do it; then a block a row.
extern "C" __global__ void __launch_bounds__(512) send_rows(const __grid_constant__ Send p) {
    __shared__ __align__(16) Choice choice;
    __shared__ __align__(16) float scratch[2 * MAX_ROWS * MAX_EXPERTS];
    wait_for_previous();
    if (blockIdx.x > 0) {
        const int row = blockIdx.x - 1;
        const float* x = reinterpret_cast<const float*>(p.x + static_cast<size_t>(row) * p.x_stride);
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.to[static_cast<size_t>(row) * p.width + i] = x[i];
        return;
    }
    choose(p.routing, p.rows, choice, scratch);
    const int count = p.routing.count;
    if (const int row = threadIdx.x / MAX_COUNT, k = threadIdx.x % MAX_COUNT; row < p.rows && k < count) {
        p.ids[row * count + k] = choice.chosen.ids[row][k];
        p.weights[row * count + k] = choice.chosen.weights[row][k];
    }
}

struct Receive {
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

// A block a row, and one for the places.
extern "C" __global__ void __launch_bounds__(256) receive_rows(const __grid_constant__ Receive p) {
    wait_for_previous();
    if (blockIdx.x == 0) {
        for (int i = threadIdx.x; i < p.experts; i += blockDim.x) p.places[i] = static_cast<int>(load_host(p.from_places + i));
        return;
    }
    const size_t first = static_cast<size_t>(blockIdx.x - 1) * p.width;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) p.to[first + i] = bits_float(load_host(p.from + first + i));
}
