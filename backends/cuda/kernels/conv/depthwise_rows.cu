// Depthwise convolution, channels last, of few results: a warp for each row of each plane of the windows, so that all loads of a
// result are in flight at once, where a thread of depthwise.cu waits for one row after the other. The warps of a block
// add up their sums in shared memory.
//
// Compile-time: see depthwise.cuh; COLUMNS is 1 where there is a dilation.

#include "conv/depthwise.cuh"

constexpr int LANES = 32, LINES = KD * KH, THREADS = LANES * LINES;

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise_rows(const T* x, const T* w, R* y, const T* bias, const T* z0, const T* z1, int count, Plane p)
{
    __shared__ Floats parts[LINES][COLUMNS][LANES];
    const int line = threadIdx.x / LANES, lane = threadIdx.x % LANES, i = blockIdx.x * LANES + lane;
    const Spot spot(min(i, count - 1), 1, p);
    const int channel = spot.channel;
    prefetch_l2(w, LINES * KW * p.channels, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
    if constexpr (BIAS) prefetch_l2(bias, p.channels, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
    w += (long long)spot.n * p.of_filters;
    grid_dependency_sync();

    const int move_w = COLUMNS == 1 ? p.dilation_w : 1;
    const int r = VOLUME ? line % KH : line, d = VOLUME ? line / KH * p.dilation_d : 0;
    const int from_row = spot.row * STEP_H - p.pad_h + r * p.dilation_h, left = spot.column * STEP_W - p.pad_w;
    const bool inside = (u32)from_row < (u32)p.height && spot.has_plane(d, p);
    const T* const from = x + (((spot.first(p) + d) * p.height + from_row) * p.width + left) * p.row_x + channel;
    Words weights[KW], found[ACROSS];
#pragma unroll
    for (int s = 0; s < KW; ++s) weights[s] = words(w + (line * KW + s) * p.channels + channel);
#pragma unroll
    for (int k = 0; k < ACROSS; ++k) {
        found[k] = {};
        if (inside && (u32)(left + k * move_w) < (u32)p.width) found[k] = words(from + k * move_w * p.row_x);
    }
    Floats sums[COLUMNS] = {};
#pragma unroll
    for (int s = 0; s < KW; ++s) {
        const Floats by = widened(weights[s]);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const Floats value = widened(found[c * STEP_W + s]);
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) sums[c].at[q] += value.at[q] * by.at[q];
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) parts[line][c][lane] = sums[c];
    __syncthreads();

    for (int item = threadIdx.x; item < COLUMNS * LANES; item += THREADS) {
        const int c = item / LANES, own = item % LANES, at = blockIdx.x * LANES + own;
        const Spot of(min(at, count - 1), 1, p);
        if (at >= count || of.column + c >= p.out_width) continue;
        Floats total = parts[0][c][own], shift = {};
#pragma unroll
        for (int other = 1; other < LINES; ++other)
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) total.at[q] += parts[other][c][own].at[q];
        if constexpr (BIAS) shift = widened(words(bias + of.channel));
        const long long pixel = ((long long)of.plane * p.out_height + of.row) * p.out_width + of.column + c;
        keep(y, total, shift, pixel, of.n, of.channel, z0, z1, p);
    }
}
