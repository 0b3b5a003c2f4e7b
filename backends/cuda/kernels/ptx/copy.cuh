// Asynchronous copies from global to shared memory (cp.async, sm_80 and newer), and stores of up to four
// adjacent elements at once.

// Copies N elements of four bytes, or writes zeros where `inside` is false.
template <int N>
__device__ __forceinline__ void cp_async(void* target, const void* source, bool inside)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(target);
    const int bytes = inside ? 4 * N : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :: "r"(to), "l"(source), "n"(4 * N), "r"(bytes));
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the N newest groups of this thread have completed.
template <int N>
__device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

// Stores four values, limited to `room`; as one word of 16 bytes where N is 4.
template <int N>
__device__ __forceinline__ void store(float* target, const float* values, int room)
{
    if (N == 4) {
        if (room > 0) *(float4*)target = make_float4(values[0], values[1], values[2], values[3]);
    } else {
#pragma unroll
        for (int q = 0; q < 4; ++q)
            if (q < room) target[q] = values[q];
    }
}
