// Programmatic dependent launch (PDL): a kernel may start before its predecessor finishes (Hopper and
// newer; elsewhere this does nothing).

// Waits for the kernel in front; everything that it wrote can be read then. Lets the one behind begin.
__device__ __forceinline__ void grid_dependency_sync()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Lets the kernel behind begin at once, which a kernel may do that still waits for the one in front: whoever comes behind
// waits for its end.
__device__ __forceinline__ void grid_dependency_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
