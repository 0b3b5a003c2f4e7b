// The scale and the zero point that quantize x to uint8, computed from its range, which is extended to include 0.
//
// Where x is long, several blocks first compute the ranges of its parts; find_scale then reads those. A range with a NaN
// is one.

#include "reduce/block.cuh"

struct Range {
    float low, high;
};

// The range of the elements that this block reads; every thread gets it.
__device__ __forceinline__ Range range_of(const float* x, long long count)
{
    float below = 0, high = 0;  // the least one, negated
    const long long step = (long long)THREADS * gridDim.x;
#pragma unroll 4
    for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        below = Larger()(below, -x[i]);
        high = Larger()(high, x[i]);
    }
    return {-over_block(below, Larger()), over_block(high, Larger())};
}

extern "C" __global__ void __launch_bounds__(THREADS)
find_range(const float* x, Range* ranges, long long count)
{
    const Range found = range_of(x, count);
    if (threadIdx.x == 0) ranges[blockIdx.x] = found;
}

// Runs as one block.
extern "C" __global__ void __launch_bounds__(THREADS)
find_scale(const float* x, float* scale, uint8* zero, long long count)
{
    const Range found = range_of(x, count);
    if (threadIdx.x) return;
    float step = (found.high - found.low) / 255.0f;
    if (step == 0) step = 1;
    *scale = step;
    *zero = uint8(fminf(fmaxf(rintf(-found.low / step), 0.0f), 255.0f));
}
