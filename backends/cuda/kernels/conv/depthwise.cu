// Depthwise convolution, channels last: bound by memory, so that few instructions are spent besides the
// sums. A thread computes VECTOR adjacent channels of ROWS x COLUMNS adjacent pixels and reads each input
// once for all their windows. Sums are in float32; weights are [kernel][channels].
//
// Compile-time: see depthwise.cuh; ROWS of a patch; ROWS and COLUMNS are 1 where there is a dilation.

#include "conv/depthwise.cuh"
#include "order.cuh"

constexpr int DOWN = (ROWS - 1) * STEP_H + KH;
constexpr bool HELD = KD * KH * KW * VECTOR <= 36;  // weights that fit registers

extern "C" __global__ void __launch_bounds__(128)
depthwise(const T* x, const T* __restrict__ w, R* y, const T* __restrict__ bias, const T* z0,
          const T* z1, int count, Plane p)
{
    const int i = in_order(blockIdx.x, gridDim.x) * 128 + threadIdx.x;
    const Spot spot(i, ROWS, p);
    const int channel = spot.channel, column = spot.column, row = spot.row;

    if constexpr (!HELD) prefetch_l2(w, KD * KH * KW * p.channels, i, gridDim.x * 128);
    if constexpr (BIAS) prefetch_l2(bias, p.channels, i, gridDim.x * 128);
    if (i >= count) return;
    w += (long long)spot.n * p.of_filters;
    Floats weights[HELD ? KD * KH * KW : 1], shift = {};
    const auto weight = [&](int tap) { return widened(words(w + tap * p.channels + channel)); };
    if constexpr (HELD) {
#pragma unroll
        for (int tap = 0; tap < KD * KH * KW; ++tap) weights[tap] = weight(tap);
    }
    grid_dependency_sync();
    if constexpr (BIAS) shift = widened(words(bias + channel));

    constexpr bool SINGLE = ROWS == 1 && COLUMNS == 1;
    const int move_h = SINGLE ? p.dilation_h : 1, move_w = SINGLE ? p.dilation_w : 1;
    const int top = row * STEP_H - p.pad_h, left = column * STEP_W - p.pad_w;
    u32 inside[(ACROSS + 31) / 32] = {};  // a bit for every column of the windows
#pragma unroll
    for (int k = 0; k < ACROSS; ++k)
        if ((u32)(left + k * move_w) < (u32)p.width) inside[k / 32] |= 1u << k % 32;
    const long long line = (long long)p.width * p.row_x * move_h;
    const T* from = x + ((spot.first(p) * p.height + top) * p.width + left) * p.row_x + channel;
    const auto load = [&](int j, Words (&to)[ACROSS]) {  // row j % DOWN of plane j / DOWN of the windows
        const int r = j % DOWN, d = j / DOWN * p.dilation_d;
        const bool exists = (u32)(top + r * move_h) < (u32)p.height && spot.has_plane(d, p);
        const u32 all = exists ? ~0u : 0;
        const T* of_plane = VOLUME ? from + (long long)d * p.height * p.width * p.row_x : from;
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            to[k] = {};
            if ((inside[k / 32] & all) >> k % 32 & 1)
                to[k] = words(of_plane + r * line + k * move_w * p.row_x);
        }
    };

    Words ahead[2][ACROSS];
    load(0, ahead[0]);
    Floats sums[ROWS][COLUMNS] = {};
    const long long pixel = ((long long)spot.plane * p.out_height + row) * p.out_width + column;
#pragma unroll
    for (int j = 0; j < KD * DOWN; ++j) {
        if (j + 1 < KD * DOWN) load(j + 1, ahead[(j + 1) % 2]);
        Floats values[ACROSS];
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) values[k] = widened(whole(ahead[j % 2][k]));
#pragma unroll
        for (int o = 0; o < ROWS; ++o) {
            const int r = j % DOWN - o * STEP_H, first = j / DOWN * KH * KW;
            if (r < 0 || r >= KH) continue;
#pragma unroll
            for (int s = 0; s < KW; ++s) {
                const Floats by = HELD ? weights[HELD ? first + r * KW + s : 0] : weight(first + r * KW + s);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                    for (int q = 0; q < VECTOR; ++q)
                        sums[o][c].at[q] += values[c * STEP_W + s].at[q] * by.at[q];
            }
            if (j < (KD - 1) * DOWN || r < KH - 1 || row + o >= p.out_height) continue;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                if (column + c < p.out_width)
                    keep(y, sums[o][c], shift, pixel + o * p.out_width + c, spot.n, channel, z0, z1, p);
        }
    }
}
