// Local response normalization of 16-bit elements, channels last, in float32: y = x / (bias + scale *
// s)^beta, s being the sum of the squares of adjacent channels. A thread computes eight channels of
// one pixel, and reads the previous and next words for their neighbours.
//
// Compile-time: T; BEFORE and AFTER, the neighbours on either side (8 at most).

#include "ptx/pdl.cuh"

struct alignas(16) Words {
    T at[8];
};

extern "C" __global__ void __launch_bounds__(128)
lrn_words(const T* x, T* y, int count, int channels, float scale, float beta, float bias)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    const int chunks = channels / 8, chunk = i % chunks;
    grid_dependency_sync();
    if (i >= count) return;
    const Words* words = (const Words*)x;
    float values[24];
#pragma unroll
    for (int part = 0; part < 3; ++part) {
        const bool inside = part == 1 || (part == 0 ? chunk > 0 : chunk + 1 < chunks);
        const Words found = inside ? words[i + part - 1] : Words{};
#pragma unroll
        for (int q = 0; q < 8; ++q) values[part * 8 + q] = float(found.at[q]);
    }
    Words results;
#pragma unroll
    for (int q = 8; q < 16; ++q) {
        float sum = 0;
#pragma unroll
        for (int c = q - BEFORE; c <= q + AFTER; ++c) sum += values[c] * values[c];
        results.at[q - 8] = T(values[q] * exp2f(-beta * __log2f(bias + scale * sum)));
    }
    ((Words*)y)[i] = results;
}
