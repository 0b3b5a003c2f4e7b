// Depthwise convolution, channels last, of windows of one row with many taps, one pixel apart: a thread computes VECTOR
// adjacent channels of COLUMNS adjacent pixels, SEGMENT taps at a time, and reads each pixel once for all of its windows.
//
// Compile-time: see depthwise.cuh; there are no planes, and no dilation. TURNED, whether windows are one column instead: height
// and width of struct Plane have each other's place, and so have `across` and `down`, so that neighbours read neighbours.

#include "conv/depthwise.cuh"

constexpr int SEGMENT = 8, KEPT = COLUMNS - 1;

extern "C" __global__ void __launch_bounds__(128)
depthwise_lines(const T* x, const T* __restrict__ w, R* y, const T* __restrict__ bias, const T* z0,
                const T* z1, int count, Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    prefetch_l2(w, KW * p.channels, i, gridDim.x * 128);
    if constexpr (BIAS) prefetch_l2(bias, p.channels, i, gridDim.x * 128);
    if (i >= count) return;
    const Spot spot(i, 1, p);
    const int line = TURNED ? spot.column / COLUMNS : spot.row, first_column = TURNED ? spot.row * COLUMNS : spot.column;
    const int channel = spot.channel, row = line * STEP_H - p.pad_h, left = first_column - p.pad_w;
    const int along = TURNED ? p.height : 1, apart = TURNED ? 1 : p.width;  // pixels from one of a line, or a line, to the next
    w += (long long)spot.n * p.of_filters + channel;
    grid_dependency_sync();
    Floats shift = {};
    if constexpr (BIAS) shift = widened(words(bias + channel));

    const int width = (u32)row < (u32)p.height ? p.width : 0;
    const T* from = x + (spot.first(p) * p.height * p.width + row * apart + left * along) * p.row_x + channel;
    const auto load = [&](int k) {
        return (u32)(left + k) < (u32)width ? words(from + (long long)k * along * p.row_x) : Words{};
    };
    Floats values[KEPT + SEGMENT], sums[COLUMNS] = {};
    Words next[SEGMENT];
#pragma unroll
    for (int k = 0; k < KEPT; ++k) values[k] = widened(load(k));
#pragma unroll
    for (int k = 0; k < SEGMENT; ++k) next[k] = load(KEPT + k);
#pragma unroll 1
    for (int first = 0; first < KW; first += SEGMENT) {
        Words weights[SEGMENT];
#pragma unroll
        for (int s = 0; s < SEGMENT; ++s) weights[s] = first + s < KW ? words(w + (first + s) * p.channels) : Words{};
#pragma unroll
        for (int k = 0; k < SEGMENT; ++k) {
            values[KEPT + k] = widened(whole(next[k]));
            next[k] = load(first + SEGMENT + KEPT + k);
        }
#pragma unroll
        for (int s = 0; s < SEGMENT; ++s) {
            if (first + s >= KW) break;  // a weight of 0 would turn an infinity into NaN
            const Floats by = widened(weights[s]);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                for (int q = 0; q < VECTOR; ++q) sums[c].at[q] += values[c + s].at[q] * by.at[q];
        }
#pragma unroll
        for (int k = 0; k < KEPT; ++k) values[k] = values[k + SEGMENT];
    }
    const int to_next = TURNED ? p.out_height : 1;
    const long long pixel = (long long)spot.plane * p.out_height * p.out_width
                          + line * (TURNED ? 1 : p.out_width) + first_column * to_next;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
        if (first_column + c < p.out_width) keep(y, sums[c], shift, pixel + c * to_next, spot.n, channel, z0, z1, p);
}
