// Warpgroup products from shared memory (wgmma, Hopper). The instruction itself is generated.

// The wgmma descriptor of a tile of 128-byte rows in swizzled order.
__device__ __forceinline__ uint64 smem_descriptor(u32 address)
{
    return (uint64)((address & 0x3FFFF) >> 4) | (uint64)1 << 16 | (uint64)(1024 >> 4) << 32
           | (uint64)1 << 62;
}

// The same of a tile whose groups of eight rows are STRIDE bytes apart.
template <int STRIDE> __device__ __forceinline__ uint64 smem_descriptor_apart(u32 address)
{
    return smem_descriptor(address) + ((uint64)((STRIDE - 1024) >> 4) << 32);
}

// The descriptor of a tile of columns, in swizzled order: strips of 64 columns, STRIP bytes apart.
template <int STRIP> __device__ __forceinline__ uint64 smem_descriptor_across(u32 address)
{
    return smem_descriptor(address) + ((uint64)((STRIP >> 4) - 1) << 16);
}

// The descriptor of a tile of rows of 16 bytes one after the other, not swizzled: words of a row are NEXT bytes apart, groups
// of eight rows STRIDE.
template <int NEXT, int STRIDE> __device__ __forceinline__ uint64 smem_descriptor_of_words(u32 address)
{
    return (uint64)((address & 0x3FFFF) >> 4) | (uint64)(NEXT >> 4) << 16 | (uint64)(STRIDE >> 4) << 32;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// Keeps the compiler from using the sums of wgmma earlier: call it after `wgmma_wait`.
__device__ __forceinline__ void settle(float& sum) { asm volatile("" : "+f"(sum) :: "memory"); }
__device__ __forceinline__ void settle(int& sum) { asm volatile("" : "+r"(sum) :: "memory"); }
__device__ __forceinline__ void settle(u32& sum) { asm volatile("" : "+r"(sum) :: "memory"); }

template <typename S, int COUNT> __device__ __forceinline__ void settle(S (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i) settle(sums[i]);
}

// Makes what this thread wrote to shared memory visible to wgmma.
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
