// Products of tiles on the tensor cores of every card: how operands lie in shared memory, how they get there, and what a warp
// multiplies.  wgmma.cuh has what four warps of Hopper do together with the same operands.
//
// Operands in shared memory are rows of 128 bytes, at multiples of 1,024; the 16-byte chunk c of row r lies at chunk c ^ (r % 8) (the
// 128-byte swizzle), so that eight lanes meet in no bank, whether they read eight rows or eight chunks.
//
// Operands in registers and results, of lane 4g + t: a has columns 2t, 2t + 1 (registers 0, 1) and 8 more (2, 3) of rows g (0, 2) and
// g + 8 (1, 3); numbers 4j … of d are columns 8j + 2t, + 1 of row g, then of row g + 8.  Four warps of Hopper have it the same way.
#pragma once

#include "common.cuh"

PS_DEVICE u32 swizzled(int row, int chunk) { return static_cast<u32>(row * 128 + ((chunk ^ (row & 7)) << 4)); }

PS_DEVICE void cp_async16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
PS_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
PS_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Sixteen rows of an operand by sixteen of its 64 columns, of which the sum runs along the rows: registers 0, 1 are b of the first eight
// rows, 2, 3 of the others.  rows: the operand's address and what `lane_of_rows` adds to it; slice: which columns; apart: bytes from
// there on.
PS_DEVICE u32 lane_of_rows(int lane) { return swizzled(lane / 16 * 8 + lane % 8, lane / 8 % 2); }
PS_DEVICE void load_rows(u32 (&b)[4], u32 rows, int slice, int apart) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((rows ^ static_cast<u32>(slice << 5)) + static_cast<u32>(apart))
                 : "memory");
}
// The same where the sum runs across sixteen rows: registers 0, 1 are b of the first eight columns of the slice, 2, 3 of the others.
PS_DEVICE u32 lane_of_turned(int lane) { return swizzled(lane % 16, lane / 16); }
PS_DEVICE void load_turned(u32 (&b)[4], u32 rows, int slice, int apart) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"((rows ^ static_cast<u32>(slice << 5)) + static_cast<u32>(apart))
                 : "memory");
}

// Columns 8j … 8j + 15 of d [16 × N] += a [16 × 16] b [16 × 16]
template <int COUNT>
PS_DEVICE void mma_sixteen(float (&d)[COUNT], int j, const u32 (&a)[4], const u32 (&b)[4]) {
    mma_halves(reinterpret_cast<float(&)[4]>(d[4 * j]), a, {b[0], b[1]});
    mma_halves(reinterpret_cast<float(&)[4]>(d[4 * j + 4]), a, {b[2], b[3]});
}
// d [16 × 2 · COUNT] += a [16 × 16 · STEPS] times rows of an operand, 64 columns of them after the other, `apart` bytes from each other.
template <int STEPS, int COUNT>
PS_DEVICE void mma_rows(float (&d)[COUNT], const u32 (&a)[STEPS][4], u32 rows, int apart) {
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int j = 0; j < COUNT / 4; j += 2) {
            u32 b[4];
            load_rows(b, rows, k % 4, k / 4 * apart + j * 1024);
            mma_sixteen(d, j, a[k], b);
        }
}
