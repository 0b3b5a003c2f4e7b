// Depthwise convolution, channels last: bound by memory, so that few instructions are spent besides the
// sums. A thread computes VECTOR adjacent channels of ROWS x COLUMNS adjacent pixels and reads each input
// once for all their windows. Sums are in float32; weights are [kernel][channels].
//
// Compile-time: T, and R of results; KH KW; STEP_H STEP_W, the stride; ROWS COLUMNS, 1 where there is a dilation;
// VECTOR; BIAS; Z0 and Z1 as in multistage.cu.

#include "conv/depthwise.cuh"

constexpr int DOWN = (ROWS - 1) * STEP_H + KH;
constexpr bool HELD = KH * KW * VECTOR <= 36;  // weights that fit registers

extern "C" __global__ void __launch_bounds__(128)
depthwise(const T* x, const T* __restrict__ w, R* y, const T* __restrict__ bias, const T* z0,
          const T* z1, int count, Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    const Spot spot(i, ROWS, p);
    const int channel = spot.channel, column = spot.column, row = spot.row, n = spot.n;

    if constexpr (!HELD) prefetch_l2(w, KH * KW * p.channels, i, gridDim.x * 128);
    if constexpr (BIAS) prefetch_l2(bias, p.channels, i, gridDim.x * 128);
    if (i >= count) return;
    Floats weights[HELD ? KH * KW : 1], shift = {};
    const auto weight = [&](int tap) { return widened(words(w + tap * p.channels + channel)); };
    if constexpr (HELD) {
#pragma unroll
        for (int tap = 0; tap < KH * KW; ++tap) weights[tap] = weight(tap);
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
    const T* from = x + (((long long)n * p.height + top) * p.width + left) * p.row_x + channel;
    const auto load = [&](int j, Words (&to)[ACROSS]) {  // row j of the windows
        const u32 all = (u32)(top + j * move_h) < (u32)p.height ? ~0u : 0;
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            to[k] = {};
            if ((inside[k / 32] & all) >> k % 32 & 1)
                to[k] = words(from + j * line + k * move_w * p.row_x);
        }
    };

    Words ahead[2][ACROSS];
    load(0, ahead[0]);
    Floats sums[ROWS][COLUMNS] = {};
    const long long pixel = ((long long)n * p.out_height + row) * p.out_width + column;
#pragma unroll
    for (int j = 0; j < DOWN; ++j) {
        if (j + 1 < DOWN) load(j + 1, ahead[(j + 1) % 2]);
        Floats values[ACROSS];
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) values[k] = widened(whole(ahead[j % 2][k]));
#pragma unroll
        for (int o = 0; o < ROWS; ++o) {
            const int r = j - o * STEP_H;
            if (r < 0 || r >= KH) continue;
#pragma unroll
            for (int s = 0; s < KW; ++s) {
                const Floats by = HELD ? weights[HELD ? r * KW + s : 0] : weight(r * KW + s);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
                    for (int q = 0; q < VECTOR; ++q)
                        sums[o][c].at[q] += values[c * STEP_W + s].at[q] * by.at[q];
            }
            if (r < KH - 1 || row + o >= p.out_height) continue;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                if (column + c < p.out_width)
                    keep(y, sums[o][c], shift, pixel + o * p.out_width + c, n, channel, z0, z1, p);
        }
    }
}
