// The distinct slices along an axis, each compared with all others. One thread per slice. NaN equals NaN
// and is greater than everything else. T is the type of the elements, A that of comparisons.
//
// Compile-time: WARPS of a block; SORTED, whether slices are in ascending order instead of the order of
// their first occurrences.

#include "reduce/block.cuh"

struct Slices {  // [outer][size][inner]
    long long outer, size, inner;
};

// Negative if slice i sorts before slice j, 0 if they are equal, else positive.
__device__ __forceinline__ int order(const T* x, const Slices& s, long long i, long long j)
{
    for (long long o = 0; o < s.outer; ++o)
        for (long long q = 0; q < s.inner; ++q) {
            const A a = A(x[(o * s.size + i) * s.inner + q]), b = A(x[(o * s.size + j) * s.inner + q]);
            const bool nan_a = a != a, nan_b = b != b;
            if (nan_a != nan_b) return nan_a ? 1 : -1;
            if (a < b) return -1;
            if (b < a) return 1;
        }
    return 0;
}

// The first occurrence of each slice.
extern "C" __global__ void __launch_bounds__(THREADS)
find_first(const T* x, long long* first, Slices s)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= s.size) return;
    long long j = 0;
    while (j < i && order(x, s, i, j)) ++j;
    first[i] = j;
}

// For each first occurrence: the number of distinct slices before it, and its count.
extern "C" __global__ void __launch_bounds__(THREADS)
rank_first(const T* x, const long long* first, long long* ranks, long long* numbers, Slices s)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= s.size || first[i] != i) return;
    long long rank = 0, number = 0;
    for (long long j = 0; j < s.size; ++j) {
        number += first[j] == i;
        if (first[j] == j) rank += SORTED ? order(x, s, j, i) < 0 : j < i;
    }
    ranks[i] = rank;
    numbers[i] = number;
}

extern "C" __global__ void __launch_bounds__(THREADS)
put_first(const T* x, const long long* first, const long long* ranks, const long long* numbers,
          T* y, long long* indices, long long* inverse, long long* counts, long long* total, Slices s)
{
    if (blockIdx.x == 0) {
        long long kinds = 0;
        for (long long j = threadIdx.x; j < s.size; j += THREADS) kinds += first[j] == j;
        kinds = over_block(kinds, Plus());
        if (!threadIdx.x) *total = kinds;
    }
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= s.size) return;
    const long long rank = ranks[first[i]];
    inverse[i] = rank;
    if (first[i] != i) return;
    indices[rank] = i;
    counts[rank] = numbers[i];
    for (long long o = 0; o < s.outer; ++o)
        for (long long q = 0; q < s.inner; ++q)
            y[(o * s.size + rank) * s.inner + q] = x[(o * s.size + i) * s.inner + q];
}
