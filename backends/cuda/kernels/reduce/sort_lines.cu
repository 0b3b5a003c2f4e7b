// The k greatest (or least) elements of many short lines of [outer][size][inner], in order; ties go to the lower
// index; NaN is the greatest. T is the type of the elements, A that of comparisons.
//
// A warp has a line in registers and sorts it, which takes less time than `top_k_lines` if many elements are wanted
// (bitonic sort).
//
// Compile-time: LARGEST; WARPS of a block; PER, elements of a lane, a power of two.

#include "ptx/pdl.cuh"
#include "reduce/block.cuh"
#include "reduce/sort_entries.cuh"

// Returns the entry of the lane that many lanes away.
__device__ __forceinline__ unsigned long long other_lane(unsigned long long own, int apart)
{
    return __shfl_xor_sync(~0u, own, apart);
}
__device__ __forceinline__ Pair other_lane(const Pair& own, int apart)
{
    return {Key(__shfl_xor_sync(~0u, own.key, apart)), __shfl_xor_sync(~0u, own.rank, apart)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_lines(const T* x, T* values, long long* places, long long lines, int size, int k, int inner)
{
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * (long long)WARPS + threadIdx.x / 32, outer = row / inner;
    if (row >= lines) return;
    const T* line = x + outer * size * inner + row - outer * inner;
    grid_dependency_sync();
    Entry own[PER];  // beyond the line: what comes last
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = lane + i * 32;
        own[i] = at < size ? entry<Entry>(key_of(A(line[(long long)at * inner])), at) : Entry{};
    }
#pragma unroll
    for (int length = 2; length <= 32 * PER; length *= 2) {  // of sorted runs, every other one in reverse
#pragma unroll
        for (int apart = length / 2; apart; apart /= 2) {
#pragma unroll
            for (int i = 0; i < PER; ++i) {
                const bool forward = !((lane + i * 32) & length);
                if (apart >= 32) {
                    if (i & apart / 32) continue;
                    Entry &a = own[i], &b = own[(i | apart / 32) % PER];
                    const Entry first = comes_first(a, b) ? a : b, last = comes_first(a, b) ? b : a;
                    a = forward ? first : last, b = forward ? last : first;
                } else {
                    const Entry other = other_lane(own[i], apart);
                    if (comes_first(own[i], other) != (!(lane & apart) == forward)) own[i] = other;
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = lane + i * 32, place = place_of(own[i]);
        if (at >= k) break;
        const long long to = (outer * k + at) * inner + row - outer * inner;
        if (values) values[to] = line[(long long)place * inner];
        if (places) places[to] = place;
    }
}
