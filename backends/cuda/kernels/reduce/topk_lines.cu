// The k greatest (or least) elements of many short lines of [outer][size][inner], in order; ties go to the lower
// index; NaN is the greatest. T is the type of the elements, A that of comparisons, of 32 bits.
//
// A warp has a line in registers, and finds the first of its elements k times among those that are left.
//
// Compile-time: LARGEST; WARPS of a block; PER, elements of a lane.

#include "ptx/pdl.cuh"
#include "reduce/block.cuh"
#include "reduce/sort_keys.cuh"

constexpr int NOWHERE = 0x7fffffff;
static_assert(sizeof(Key) == 4, "a warp finds the greatest by one instruction");

extern "C" __global__ void __launch_bounds__(THREADS)
top_k_lines(const T* x, T* values, long long* places, long long lines, int size, int k, int inner)
{
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * (long long)WARPS + threadIdx.x / 32, outer = row / inner;
    if (row >= lines) return;
    const T* line = x + outer * size * inner + row - outer * inner;
    grid_dependency_sync();
    Key own[PER];
    unsigned left = 0;  // a bit for each element that is not among the results
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = lane + i * 32;
        if (at >= size) break;
        own[i] = key_of(A(line[(long long)at * inner]));
        left |= 1u << i;
    }
    Key most;
    int place;  // of the greatest element that is left, in the line
    const auto find_most = [&] {
        most = 0;
        place = NOWHERE;
#pragma unroll
        for (int i = PER - 1; i >= 0; --i)
            if (left >> i & 1 && own[i] >= most) {
                most = own[i];
                place = lane + i * 32;
            }
    };
    find_most();
    int kept = 0;  // the result of this lane, of the last 32
    for (int n = 0; n < k; ++n) {
        const Key first = __reduce_max_sync(~0u, most);
        const int found = __reduce_min_sync(~0u, most == first ? place : NOWHERE);
        if (lane == n % 32) kept = found;
        if (place == found) {
            left &= ~(1u << found / 32);
            find_most();
        }
        if (n % 32 < 31 && n + 1 < k) continue;
        if (lane > n % 32) break;
        const long long to = (outer * k + n - n % 32 + lane) * inner + row - outer * inner;
        if (values) values[to] = line[(long long)kept * inner];
        if (places) places[to] = kept;
    }
}
