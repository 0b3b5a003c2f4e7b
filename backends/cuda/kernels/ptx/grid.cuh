// Numbers in memory by which blocks of a cooperative launch, which run all at once, wait for one another.

// Tells other blocks that this one, whose threads have met before, has come to step `number`: its writes are visible to those
// that wait for it.
__device__ __forceinline__ void announce_step(int* at, int number)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(at), "r"(number) : "memory");
}

// Waits until another block has come to a step.
__device__ __forceinline__ void await_step(const int* at, int number)
{
    int found;
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(at) : "memory");
    while (found < number);
}
