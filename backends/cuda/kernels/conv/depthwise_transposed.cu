// Transposed depthwise convolution, channels last: a thread gathers the terms of VECTOR adjacent channels
// of one pixel, which are at every STEP-th tap of the window. Sums are in float32; weights are
// [kernel][channels].
//
// Compile-time: see depthwise.cuh. COLUMNS is 1.

#include "conv/depthwise.cuh"

constexpr int TERMS_H = (KH + STEP_H - 1) / STEP_H, TERMS_W = (KW + STEP_W - 1) / STEP_W;

extern "C" __global__ void __launch_bounds__(128)
depthwise_transposed(const T* x, const T* __restrict__ w, R* y, const T* __restrict__ bias,
                     const T* z0, const T* z1, int count, Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    prefetch_l2(w, KH * KW * p.channels, i, gridDim.x * 128);
    if (i >= count) return;
    const Spot spot(i, 1, p);
    const int across = spot.column + p.pad_w, down = spot.row + p.pad_h;
    const int right = across / STEP_W, bottom = down / STEP_H;  // the last pixel that may reach this one
    const T* from = x + (long long)spot.n * p.height * p.width * p.row_x + spot.channel;
    Floats shift = {}, sum = {};
    w += (long long)spot.n * p.of_filters;
    grid_dependency_sync();
    if constexpr (BIAS) shift = widened(words(bias + spot.channel));
#pragma unroll
    for (int a = 0; a < TERMS_H; ++a) {
        const int r = down % STEP_H + a * STEP_H, v = bottom - a;
        if (r >= KH || (u32)v >= (u32)p.height) continue;
#pragma unroll
        for (int b = 0; b < TERMS_W; ++b) {
            const int s = across % STEP_W + b * STEP_W, u = right - b;
            if (s >= KW || (u32)u >= (u32)p.width) continue;
            const Floats value = widened(whole(words(from + (v * p.width + u) * p.row_x)));
            const Floats by = widened(words(w + (r * KW + s) * p.channels + spot.channel));
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) sum.at[q] += value.at[q] * by.at[q];
        }
    }
    const long long pixel = ((long long)spot.plane * p.out_height + spot.row) * p.out_width + spot.column;
    keep(y, sum, shift, pixel, spot.n, spot.channel, z0, z1, p);
}
