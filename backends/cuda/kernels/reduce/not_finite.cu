// *found = 1 if an element of x is infinite or NaN. T is an unsigned integer of the elements' size; x is aligned to 16
// bytes. Threads read 16 bytes at a time.
//
// Compile-time: EXPONENT, the bits of an element's exponent, all of which are set in an infinity or NaN.

#include "ptx/pdl.cuh"

constexpr int WIDTH = 16 / sizeof(T);
struct alignas(16) Chunk {
    T at[WIDTH];
};

__device__ __forceinline__ bool is_not_finite(T element) { return (element & (T)EXPONENT) == (T)EXPONENT; }

extern "C" __global__ void __launch_bounds__(256)
not_finite(unsigned* found, const T* x, long long count)
{
    bool any = false;
    grid_dependency_sync();
    const long long stride = (long long)gridDim.x * 256 * WIDTH;
    for (long long i = ((long long)blockIdx.x * 256 + threadIdx.x) * WIDTH; i < count; i += stride) {
        if (i + WIDTH <= count) {
            const Chunk chunk = *(const Chunk*)(x + i);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) any |= is_not_finite(chunk.at[j]);
        } else {
            for (long long j = i; j < count; ++j) any |= is_not_finite(x[j]);
        }
    }
    if (any) *found = 1;
}
