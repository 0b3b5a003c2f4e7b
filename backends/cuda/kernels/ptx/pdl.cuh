// Programmatic dependent launch (PDL): a kernel may start before its predecessor finishes (Hopper and
// newer; no-ops elsewhere).

// Waits for the preceding kernel, whose writes are visible afterwards, and lets the next kernel start.
__device__ __forceinline__ void grid_dependency_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Brings `count` elements into the L2 cache, a line of them per thread of `threads`: constants that a kernel reads late,
// named before it waits. Weights of a large network have displaced them since the last run. Of data that the preceding
// kernel still writes no old copy remains, as all multiprocessors write through this cache.
template <typename V>
__device__ __forceinline__ void prefetch_l2(const V* from, int count, int thread, int threads)
{
    constexpr int LINE = 128 / sizeof(V);
    for (int i = thread * LINE; i < count; i += threads * LINE)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(from + i));
}

// Lets the next kernel start at once. A kernel that still waits for its predecessor may do so: the next kernel waits
// for its end before it reads results.
__device__ __forceinline__ void grid_dependency_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
