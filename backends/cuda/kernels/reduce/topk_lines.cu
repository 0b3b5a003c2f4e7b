// The k greatest (or least) elements of many short lines of [outer][size][inner], in order; ties go to the lower
// index; NaN is the greatest. T is the type of the elements, A that of comparisons, of 32 bits.
//
// A warp has a line in registers, and finds the first of its elements k times: the greatest of those that are less than
// the one before.
//
// Compile-time: LARGEST; WARPS of a block; PER, elements of a lane.

#include "reduce/block.cuh"
#include "reduce/sort_keys.cuh"

typedef unsigned long long Ranked;  // a key, and the complement of the index: no two are equal
static_assert(sizeof(Key) == 4, "half of it is the key");

extern "C" __global__ void __launch_bounds__(THREADS)
top_k_lines(const T* x, T* values, long long* places, long long lines, int size, int k, int inner)
{
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * (long long)WARPS + threadIdx.x / 32, outer = row / inner;
    if (row >= lines) return;
    const T* line = x + outer * size * inner + row - outer * inner;
    Ranked own[PER], most = 0;  // less than all elements
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = lane + i * 32;
        own[i] = at < size ? Ranked(key_of(A(line[(long long)at * inner]))) << 32 | ~unsigned(at) : 0;
        if (own[i] > most) most = own[i];
    }
    Ranked kept = 0;  // the result of this lane, of the last 32
    for (int n = 0; n < k; ++n) {
        const Ranked first = over_warp(most, Larger());
        if (lane == n % 32) kept = first;
        if (most == first) {
            most = 0;
#pragma unroll
            for (int i = 0; i < PER; ++i)
                if (own[i] < first && own[i] > most) most = own[i];
        }
        if (n % 32 < 31 && n + 1 < k) continue;
        if (lane > n % 32) break;
        const int place = ~unsigned(kept);
        const long long to = (outer * k + n - n % 32 + lane) * inner + row - outer * inner;
        if (values) values[to] = line[(long long)place * inner];
        if (places) places[to] = place;
    }
}
