// What all kernels share: names for types, instructions that C++ has no word for, copies, and small sums.
#pragma once

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

#ifndef INFINITY  // the run-time compiler has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

#define PS_DEVICE __device__ __forceinline__

// What the card can do, as __CUDA_ARCH__ counts: 860 is 8.6.  A newer card may be treated as an older one (device.py).
#ifndef CAPABILITY
#define CAPABILITY __CUDA_ARCH__
#endif
#define BULK (CAPABILITY >= 900)        // bulk copies, clusters, kernels that overlap
#define WARPGROUPS (CAPABILITY == 900)  // products of four warps together

constexpr int WARP = 32;
constexpr u32 ALL = 0xffffffffu;

// A number that templates can see.
template <int N>
struct Constant {
    static constexpr int value = N;
};

// ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

PS_DEVICE float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
PS_DEVICE u16 float_to_half(float f) {  // to nearest, ties to even
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
PS_DEVICE float low_half(u32 w) { return half_to_float(static_cast<u16>(w & 0xffff)); }
PS_DEVICE float high_half(u32 w) { return half_to_float(static_cast<u16>(w >> 16)); }
PS_DEVICE u32 float_bits(float f) { return __float_as_uint(f); }
PS_DEVICE float bits_float(u32 u) { return __uint_as_float(u); }
PS_DEVICE u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
// prmt with the sign bit of every selector nibble: bytes become 0x00 or 0xff by their own sign.
PS_DEVICE u32 permute_signs(u32 a, u32 b, u32 selector) {
    u32 d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// ── a sequence's memory ──────────────────────────────────────────────────────────────────────────────────────────────

// Where the rows of one kind begin in the memory of a sequence, how far they lie apart, in bytes, and how many there is room for.
struct RowsAt {
    long long at;
    int apart, capacity;
};

enum RowKind { ROW_F32 = 0, ROW_F16 = 1, ROW_BF16 = 2 };  // as in penstock.backend.cuda.states

PS_DEVICE float load_row(const char* row, int kind, int i) {
    if (kind == ROW_F32) return reinterpret_cast<const float*>(row)[i];
    const u16 h = reinterpret_cast<const u16*>(row)[i];
    return kind == ROW_F16 ? half_to_float(h) : bits_float(static_cast<u32>(h) << 16);
}
PS_DEVICE void store_row(char* row, int kind, int i, float v) {
    if (kind == ROW_F32) {
        reinterpret_cast<float*>(row)[i] = v;
    } else if (kind == ROW_F16) {
        reinterpret_cast<u16*>(row)[i] = float_to_half(v);
    } else {
        u16 h;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
        reinterpret_cast<u16*>(row)[i] = h;
    }
}

// Integers below 2^22 as floats without an instruction that converts, which is four times as slow as others: those of the number that
// leaves no room for fractions, plus the integer.
constexpr float ROUND = 12582912.0f;  // 1.5 · 2^23
constexpr int ROUND_BITS = 0x4b400000;
PS_DEVICE float rounded_float(int v) { return bits_float(static_cast<u32>(v)) - ROUND; }

// ── sums across a warp, always in the same order ─────────────────────────────────────────────────────────────────────

PS_DEVICE float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(ALL, v, d);
    return v;
}
PS_DEVICE float warp_max(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL, v, d));
    return v;
}
PS_DEVICE u64 warp_max(u64 v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        const u64 other = __shfl_xor_sync(ALL, v, d);
        v = other > v ? other : v;
    }
    return v;
}

// Floats in an order that integers have too, with ties to the lower id: higher rank, better row.
PS_DEVICE u64 rank_of(float score, u32 id) {
    const u32 b = float_bits(score + 0.0f);  // −0 becomes 0
    const u32 ordered = b & 0x80000000u ? ~b : b | 0x80000000u;
    return static_cast<u64>(ordered) << 32 | (0xffffffffu - id);
}
PS_DEVICE u32 ranked_id(u64 rank) { return 0xffffffffu - static_cast<u32>(rank); }

// ── kernels that overlap (programmatic dependent launch) ─────────────────────────────────────────────────────────────

// From here on the kernel before has ended and what it wrote can be read.  Where kernels do not overlap that is always so.
PS_DEVICE void wait_for_previous() {
#if BULK
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start as soon as all blocks have said so.
PS_DEVICE void let_next_start() {
#if BULK
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// One thread, behind a barrier of those whose writes shall be seen: one more.  Lighter than a fence, which orders everything.
PS_DEVICE u32 count_up(u32* counter) {  // what it was before; what others wrote before they counted can be read
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
PS_DEVICE void count_up_only(u32* counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory"); }
// One thread: until others have counted up to `value`.
PS_DEVICE void wait_until(const u32* counter, u32 value) {
    u32 seen;
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    while (seen < value);
}

// ── shared memory, copies to it ──────────────────────────────────────────────────────────────────────────────────────

PS_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// Brings what lies at `p` nearer: into the second-level cache, where it is always the newest.
PS_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// The same for many bytes that lie at a multiple of 16, as many.
PS_DEVICE void prefetch(const void* p, u32 bytes) {
#if BULK
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#else
    for (u32 at = 0; at < bytes; at += 128) prefetch(static_cast<const char*>(p) + at);
#endif
}

// All blocks: the same for many bytes.
PS_DEVICE void fetch_ahead(const char* from, int bytes) {
    if (const int at = (threadIdx.x * gridDim.x + blockIdx.x) * 128; at < bytes) prefetch(from + at);
}

PS_DEVICE uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
PS_DEVICE uint2 load8(const void* p) { return *static_cast<const uint2*>(p); }
PS_DEVICE u32 load4(const void* p) { return *static_cast<const u32*>(p); }
PS_DEVICE uint2 load_shared8(u32 address) {
    uint2 v;
    asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
    return v;
}

PS_DEVICE void barrier_init(u64* bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
PS_DEVICE void barrier_arrive(u64* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
}
// Whether a phase is over.
PS_DEVICE bool barrier_test(u64* bar, u32 parity) {
    u32 over;
    asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(over) : "r"(shared_address(bar)), "r"(parity) : "memory");
    return over != 0;
}
// Until it is.
PS_DEVICE void barrier_wait(u64* bar, u32 parity) {
#if BULK
    asm volatile(
        "{\n .reg .pred p;\n"
        "again:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra done;\n bra again;\n"
        "done:\n}\n" ::"r"(shared_address(bar)), "r"(parity) : "memory");
#else
    while (!barrier_test(bar, parity)) {}
#endif
}

// Bulk copies, where there are any: one thread asks, the barrier counts bytes.
PS_DEVICE void barrier_expect(u64* bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}
PS_DEVICE void bulk_copy(void* to, const void* from, u32 bytes, u64* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar))
                 : "memory");
}
// The same for weights, which a step reads once: they shall not push out what it reads again.
PS_DEVICE void stream_copy(void* to, const void* from, u32 bytes, u64* bar) {
    constexpr u64 EVICT_FIRST = 0x12f0000000000000;  // a policy of the second-level cache, as `createpolicy` makes it
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(EVICT_FIRST)
                 : "memory");
}

// Who barriers are made for knows them only behind this and a barrier of the block or warp.
PS_DEVICE void barrier_init_visible() {
#if BULK
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// What this thread has written to shared memory comes before bulk copies that are asked for behind a barrier.
PS_DEVICE void writes_visible() {
#if BULK
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Threads that copy into shared memory together while they do something else: a warp, or a block.  All of them call, with the same
// arguments: `announce`, copies of multiples of 16 bytes, `close`.  A barrier made for `arrivals` completes a phase when all has come.  With
// bulk copies the first thread asks for everything; without them every thread copies some pieces of 16 bytes.
struct Copiers {
    int number, count;  // the thread's own, and how many they are

#if BULK
    PS_DEVICE int arrivals() const { return 1; }
    PS_DEVICE bool copies() const { return number == 0; }
    PS_DEVICE void announce(u64* bar, u32 bytes) const { barrier_expect(bar, bytes); }
    PS_DEVICE void copy(void* to, const void* from, u32 bytes, u64* bar) const { bulk_copy(to, from, bytes, bar); }
    PS_DEVICE void stream(void* to, const void* from, u32 bytes, u64* bar) const { stream_copy(to, from, bytes, bar); }
    PS_DEVICE void close(u64*) const {}
#else
    PS_DEVICE int arrivals() const { return count; }
    PS_DEVICE bool copies() const { return true; }
    PS_DEVICE void announce(u64*, u32) const {}
    PS_DEVICE void copy(void* to, const void* from, u32 bytes, u64*) const {
        const u32 at = shared_address(to);
#pragma unroll 4
        for (u32 i = number * 16; i < bytes; i += count * 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at + i), "l"(static_cast<const char*>(from) + i) : "memory");
    }
    // Without a hint for the second-level cache: of copies that have one the assembler of CUDA 13.0 makes illegal instructions now and then.
    PS_DEVICE void stream(void* to, const void* from, u32 bytes, u64* bar) const { copy(to, from, bytes, bar); }
    PS_DEVICE void close(u64* bar) const {  // arrives when this thread's copies have
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
    }
#endif
};
PS_DEVICE Copiers warp_copiers(int lane) { return {lane, WARP}; }
PS_DEVICE Copiers block_copiers() { return {static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)}; }

// A warp's own ring of stages.  Nobody else touches it, so one barrier a stage (full) is enough: the warp refills a
// stage after it has read it.
struct Ring {
    char* memory;
    u64* bars;
    int stages, stage_bytes;
    int filled = 0, used = 0;  // stages so far
    int fill_at = 0, use_at = 0;
    u32 parity = 0;

    PS_DEVICE Ring(char* memory, u64* bars, int stages, int stage_bytes, int lane)
        : memory(memory), bars(bars), stages(stages), stage_bytes(stage_bytes) {
        if (lane == 0) {
#pragma unroll 1
            for (int i = 0; i < stages; i++) barrier_init(bars + i, warp_copiers(lane).arrivals());
            barrier_init_visible();
        }
        __syncwarp();
    }
    PS_DEVICE bool full() const { return filled - used == stages; }
    PS_DEVICE char* to_fill() const { return memory + fill_at * stage_bytes; }
    // One lane calls: announces `bytes` for the next stage; bulk copies follow.
    PS_DEVICE u64* announce(u32 bytes) const {
        barrier_expect(bars + fill_at, bytes);
        return bars + fill_at;
    }
    PS_DEVICE void advance_fill() {
        filled++;
        if (++fill_at == stages) fill_at = 0;
    }
    // All lanes: asks for the next stage, `bytes` from one place.
    PS_DEVICE void fill(const void* from, u32 bytes, int lane) {
        const Copiers lanes = warp_copiers(lane);
        if (lanes.copies()) {
            lanes.announce(bars + fill_at, bytes);
            lanes.stream(to_fill(), from, bytes, bars + fill_at);
            lanes.close(bars + fill_at);
        }
        advance_fill();
    }
    PS_DEVICE const char* wait() const {
        barrier_wait(bars + use_at, parity);
        return memory + use_at * stage_bytes;
    }
    PS_DEVICE void release() {
        __syncwarp();
        used++;
        if (++use_at == stages) use_at = 0, parity ^= 1;
    }
};

// A barrier among `threads` threads of a block, by number 1 … 15.
PS_DEVICE void named_barrier(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// The same for threads that do not wait.
PS_DEVICE void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ── tensor cores ─────────────────────────────────────────────────────────────────────────────────────────────────────

// c [16 × 8] += a [16 × 32] b [32 × 8], signed bytes, exact
PS_DEVICE void mma_bytes(int (&c)[4], const u32 (&a)[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
// d [16 × 8] = ROUND_BITS + a [16 × 32] b [32 × 8]: what `rounded_float` makes floats of.  `from`: ROUND_BITS in four registers
PS_DEVICE void mma_rounded(int (&d)[4], const u32 (&a)[4], uint2 b, const int (&from)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}
// The same with unsigned a.
PS_DEVICE void mma_unsigned(int (&c)[4], const u32 (&a)[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
// c [16 × 8] += a [16 × 16] b [16 × 8], signed bytes, exact
PS_DEVICE void mma_bytes_16(int (&c)[4], u32 a0, u32 a1, u32 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}
// c [16 × 8] += a [16 × 16] b [16 × 8], halfs, float sums
PS_DEVICE void mma_halves(float (&c)[4], const u32 (&a)[4], uint2 b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}
