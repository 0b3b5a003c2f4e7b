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

// Lets the next kernel start at once. A kernel that still waits for its predecessor may do so: the next kernel waits
// for its end before it reads results.
__device__ __forceinline__ void grid_dependency_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
