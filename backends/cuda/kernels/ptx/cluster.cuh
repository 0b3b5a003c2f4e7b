// Blocks that share their memory (thread block clusters, distributed shared memory). Kernels that are
// compiled for older GPUs name them, too, and never get there.

// Waits for all blocks of the cluster.
__device__ __forceinline__ void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    __syncwarp();  // the barrier counts warps whose threads arrive together
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// The same in two: says that this thread has come, and waits for all others. What was written before the first, to
// memory of whichever block, is there after the second.
__device__ __forceinline__ void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Writes four floats to another block of the cluster, at the place of `address` in its memory.
__device__ __forceinline__ void dsmem_store(u32 address, int block, float4 x)
{
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(there), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#endif
}

// Reads four floats of another block of the cluster, at the place of `address` in its memory.
__device__ __forceinline__ float4 dsmem_load(u32 address, int block)
{
    float4 found = {};
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
                 : "r"(there) : "memory");
#endif
    return found;
}
