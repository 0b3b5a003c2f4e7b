// TMA (Tensor Memory Accelerator, Hopper's copy engine) as PTX: barriers that count bytes, and copies of boxes of
// tensors that tensor maps describe. One thread issues a copy; elements outside of a tensor read as zeros and are not
// written.

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Brings a tensor map closer, before copies need it.
__device__ __forceinline__ void prefetch_map(const TensorMap* map)
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}

// ── copies ──────────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void tma_load_2d(u32 to, const TensorMap* map, u32 barrier, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_load_3d(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_load_4d(u32 to, const TensorMap* map, u32 barrier, int channel, int x,
                                        int y, int n)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(n) : "memory");
}

// Copies pixels of a bounding box row by row, all of them displaced by (of_x, of_y).
__device__ __forceinline__ void tma_load_im2col(u32 to, const TensorMap* map, u32 barrier, int channel,
                                             int x, int y, int n, int of_x, int of_y)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};"
                 :: "r"(to), "l"(map), "r"(barrier), "r"(channel), "r"(x), "r"(y), "r"(n),
                    "h"((unsigned short)of_x), "h"((unsigned short)of_y) : "memory");
}

__device__ __forceinline__ void tma_store_2d(const TensorMap* map, u32 from, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
                 :: "l"(map), "r"(from), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_store_3d(const TensorMap* map, u32 from, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ __forceinline__ void tma_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int n)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
                 :: "l"(map), "r"(from), "r"(x), "r"(y), "r"(z), "r"(n) : "memory");
}

// Waits until all stores of this thread have read their shared memory.
__device__ __forceinline__ void tma_store_wait()
{
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Copies bytes to global memory: whole words of 16 bytes, at addresses that are multiples of that.
__device__ __forceinline__ void bulk_store(void* to, u32 from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}

// Makes a group of the stores of this thread since the last one.
__device__ __forceinline__ void bulk_store_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until all but the last COUNT groups of stores of this thread have read their shared memory.
template <int COUNT> __device__ __forceinline__ void bulk_store_wait()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(COUNT) : "memory");
}

// ── operands of wgmma ───────────────────────────────────────────────────────────────────────────

// The descriptor of a tile of rows of WIDTH elements, without its address; `next` is the distance, in rows,
// between consecutive groups of eight rows.
template <int WIDTH> __device__ __forceinline__ uint64 smem_descriptor_as(int next)
{
    constexpr uint64 SWIZZLE = WIDTH == 64 ? 1 : WIDTH == 32 ? 2 : 3;
    return SWIZZLE << 62 | (uint64)(next * WIDTH * 2 >> 4) << 32 | (uint64)1 << 16;
}
