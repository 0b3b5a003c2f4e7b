// The scale and the zero point that quantize x to uint8: from its range, which includes 0. One
// block.

#include "block.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
find_scale(const float* x, float* scale, uint8* zero, long long count)
{
    float low = 0, high = 0;
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    low = -over_block(-low, Larger());
    high = over_block(high, Larger());
    if (threadIdx.x) return;
    const float step = high > low ? (high - low) / 255.0f : 1.0f;
    *scale = step;
    *zero = uint8(fminf(fmaxf(rintf(-low / step), 0.0f), 255.0f));
}
