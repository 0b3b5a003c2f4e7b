// The copy engine of Hopper, as PTX: barriers that count bytes, and copies of boxes of tensors that
// tensor maps describe. One thread asks; elements outside of a tensor arrive as zeros.

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// ── barriers ────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void barrier_begin(u32 barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives, and lets the phase last until so many bytes have come.
__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}

// Waits for the end of a phase; phases are called 0 and 1 in turn.
__device__ __forceinline__ void barrier_wait(u32 barrier, int phase)
{
    asm volatile("{ .reg .pred done;\n"
                 "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra AGAIN; }"
                 :: "r"(barrier), "r"(phase) : "memory");
}

// ── copies ──────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void bulk_2d(u32 to, const TensorMap* map, u32 barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void bulk_3d(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void bulk_4d(u32 to, const TensorMap* map, u32 barrier, int channel, int x,
                                        int y, int n)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(n) : "memory");
}

// Copies pixels of a bounding box row by row, all of them moved by (of_x, of_y).
__device__ __forceinline__ void bulk_windows(u32 to, const TensorMap* map, u32 barrier, int channel,
                                             int x, int y, int n, int of_x, int of_y)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(n),
                    "h"((unsigned short)of_x), "h"((unsigned short)of_y) : "memory");
}

// ── operands of wgmma ───────────────────────────────────────────────────────────────────────────

// What describes a tile of rows of WIDTH elements, less its address; `next` is the distance, in rows,
// of each eight of rows from the one before.
template <int WIDTH> __device__ __forceinline__ uint64 described_as(int next)
{
    constexpr uint64 SWIZZLE = WIDTH == 64 ? 1 : WIDTH == 32 ? 2 : 3;
    return SWIZZLE << 62 | (uint64)(next * WIDTH * 2 >> 4) << 32 | (uint64)1 << 16;
}
