// Thread-block clusters: blocks that run at the same time and write into each other's shared memory.  Only where there are bulk copies.
#pragma once

#include "common.cuh"

PS_DEVICE int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
PS_DEVICE int cluster_size() {
    int size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// All threads of the cluster.  A block may not be written to before it has begun to run and made its barriers (and said
// `barrier_init_visible`), nor end while another copies out of its memory.  Of other memory this says nothing: that would be a fence,
// which takes as long as a small kernel.
PS_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
PS_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where block `rank` has what lies at `p` here.
PS_DEVICE u32 shared_of(const void* p, int rank) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    return at;
}
// Writes into another block, which counts the bytes at its barrier `bar`: much sooner there than across a barrier of the cluster.
PS_DEVICE void send(u32 to, float v, u32 bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v), "r"(bar) : "memory");
}
PS_DEVICE void send(u32 to, float2 v, u32 bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(v.x), "f"(v.y), "r"(bar)
                 : "memory");
}
// The same for what lies in this block's shared memory, behind `writes_visible` of all who wrote it and a barrier.
PS_DEVICE void send_bulk(u32 to, const void* from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(shared_address(from)), "r"(bytes), "r"(bar)
                 : "memory");
}
