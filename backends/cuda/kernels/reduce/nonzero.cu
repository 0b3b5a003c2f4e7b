// NonZero and Compress: the positions of the elements that are not 0, in order, and their number. Two launches:
// the count of each chunk, then the positions, which start at the counts of the chunks before. T is the type of
// the elements.
//
// Compile-time: WARPS of a block; RANK of the tensor. M is the type that `keep` moves.

#include "reduce/block.cuh"
#include "reduce/scan.cuh"

struct Ints {
    long long at[RANK];
};

__device__ __forceinline__ bool is_found(const T* x, long long i, long long end)
{
    return i < end && A(x[i]) != A(0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
count_found(const T* x, long long* counts, long long size, long long chunk)
{
    const long long begin = blockIdx.x * chunk, end = min(size, begin + chunk);
    long long own = 0;
    for (long long i = begin + threadIdx.x; i < end; i += THREADS) own += is_found(x, i, end);
    own = over_block(own, Plus());
    if (!threadIdx.x) counts[blockIdx.x] = own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
list_found(const T* x, const long long* counts, long long* list, long long* total, long long size,
           long long chunk)
{
    const long long begin = blockIdx.x * chunk, end = min(size, begin + chunk);
    long long before = 0;
    for (long long other = threadIdx.x; other < blockIdx.x; other += THREADS)
        before += counts[other];
    before = over_block(before, Plus());
    for (long long tile = begin; tile < end; tile += THREADS) {
        const long long i = tile + threadIdx.x;
        const bool found = is_found(x, i, end);
        const long long rank = up_to((long long)found, before, Plus());
        if (found) list[rank] = i;
    }
    if (!threadIdx.x && blockIdx.x == gridDim.x - 1) *total = before;
}

// NonZero: the coordinates of the positions, [RANK][pitch].
extern "C" __global__ void __launch_bounds__(THREADS)
coordinates(const long long* list, const long long* total, long long* y, long long pitch, Ints sizes)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= min(pitch, *total)) return;
    long long rest = list[i];
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const long long next = rest / sizes.at[axis];
        y[axis * pitch + i] = rest - next * sizes.at[axis];
        rest = next;
    }
}

// Compress: y[outer][pitch][inner] of x[outer][size][inner], for as many positions as there are.
extern "C" __global__ void __launch_bounds__(THREADS)
keep(const M* x, const long long* list, const long long* total, M* y, long long count,
     long long size, long long pitch, long long inner)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const long long row = i / inner, outer = row / pitch, place = row - outer * pitch;
    if (place < *total) y[i] = x[(outer * size + list[place]) * inner + i - row * inner];
}
