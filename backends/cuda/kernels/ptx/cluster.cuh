// Thread block clusters: blocks that access each other's shared memory (distributed shared memory). Kernels
// compiled for older GPUs contain these functions, too, but never call them.

// Waits for all blocks of the cluster.
__device__ __forceinline__ void cluster_sync()
{
#if __CUDA_ARCH__ >= 900
    __syncwarp();  // the barrier counts converged warps
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// A split barrier: arrive signals that this thread has arrived, wait waits for all others. Writes before the arrive, to
// the memory of any block, are visible after the wait.
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

// Reads four floats from another block of the cluster, at the same offset as `address` in its shared memory.
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

// The same where nothing but barriers must be visible, which `dsmem_expect` has seen to.
__device__ __forceinline__ void cluster_arrive_relaxed()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

// Makes a barrier expect so many bytes, which blocks of the cluster send; for all threads, before they arrive. Where the
// compiler leaves no branch, the whole warp initializes the barrier: it converges before the first thread counts.
__device__ __forceinline__ void dsmem_expect(u32 barrier, int bytes)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "fence.mbarrier_init.release.cluster;" :: "r"(barrier) : "memory");
    __syncwarp();
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#endif
}

// Writes two or four floats to another block of the cluster, at the same offset as `address` in its shared memory; the
// barrier there, at the same offset as `barrier`, counts the bytes.
__device__ __forceinline__ void dsmem_send(u32 address, u32 barrier, int block, float2 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .u32 there, signal;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 signal, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [there], {%3, %4}, [signal];\n}"
                 :: "r"(address), "r"(barrier), "r"(block), "f"(x.x), "f"(x.y) : "memory");
#endif
}

__device__ __forceinline__ void dsmem_send(u32 address, u32 barrier, int block, float4 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .u32 there, signal;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 signal, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
                 "[signal];\n}"
                 :: "r"(address), "r"(barrier), "r"(block), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
#endif
}

// Writes one float likewise.
__device__ __forceinline__ void dsmem_send(u32 address, u32 barrier, int block, float x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .u32 there, signal;\n"
                 "mapa.shared::cluster.u32 there, %0, %2;\n"
                 "mapa.shared::cluster.u32 signal, %1, %2;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %3, [signal];\n}"
                 :: "r"(address), "r"(barrier), "r"(block), "f"(x) : "memory");
#endif
}

// Waits for the bytes that a barrier expects in the phase of this parity; for all threads of a block.
__device__ __forceinline__ void dsmem_wait(u32 barrier, u32 parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}"
                 :: "r"(barrier), "r"(parity) : "memory");
#endif
}

// Waits for the bytes that the barrier expects.
__device__ __forceinline__ void dsmem_wait(u32 barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra again;\n}"
                 :: "r"(barrier) : "memory");
#endif
}
