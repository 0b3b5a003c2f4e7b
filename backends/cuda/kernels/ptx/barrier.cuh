// Synchronizes the first COUNT threads of a block, whole warps, of which there may be more.
template <int COUNT> __device__ __forceinline__ void first_threads_sync()
{
    asm volatile("bar.sync 1, %0;" :: "n"(COUNT) : "memory");
}
