// Depthwise convolution of 16-bit elements, channels last: bound by memory. A thread computes eight
// neighbouring channels of ROWS x COLUMNS neighbouring pixels, and reads each input once for all their
// windows. Sums in float32; weights are [kernel][channels].
//
// Compile-time: T; KH KW; STEP_H STEP_W, the stride; ROWS COLUMNS, 1 where there is a dilation; BIAS; Z0
// and Z1 as in mma.cu.

#include "early.cuh"
#include "finish.cuh"

struct Plane {
    int channels, height, width, out_height, out_width;
    int dilation_h, dilation_w, pad_h, pad_w;
    int row_x, row_y;  // elements from one pixel to the next
};

extern "C" __global__ void __launch_bounds__(128)
depthwise_words(const T* x, const T* w, T* y, const T* bias, const T* z0, const T* z1, int count,
                Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    int rest = i;
    const auto next = [&](int size) {  // the last of the places that are left, of so many
        const int whole = rest / size, found = rest - whole * size;
        rest = whole;
        return found;
    };
    const int channel = next(p.channels / 8) * 8;
    const int column = next((p.out_width + COLUMNS - 1) / COLUMNS) * COLUMNS;
    const int row = next((p.out_height + ROWS - 1) / ROWS) * ROWS, n = rest;
    begin_early();
    if (i >= count) return;

    constexpr int DOWN = (ROWS - 1) * STEP_H + KH, ACROSS = (COLUMNS - 1) * STEP_W + KW;
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    float sums[ROWS][COLUMNS][8] = {};
#pragma unroll
    for (int j = 0; j < DOWN; ++j) {
        const int v = row * STEP_H - p.pad_h + j * p.dilation_h;
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            const int u = column * STEP_W - p.pad_w + k * p.dilation_w;
            Words values = {};
            if (v >= 0 && v < p.height && u >= 0 && u < p.width)
                values = *(const Words*)(image + (long long)(v * p.width + u) * p.row_x);
#pragma unroll
            for (int o = 0; o < ROWS; ++o)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    const int r = j - o * STEP_H, s = k - c * STEP_W;
                    if (r < 0 || r >= KH || s < 0 || s >= KW) continue;
                    const Words weights = *(const Words*)(w + (r * KW + s) * p.channels + channel);
#pragma unroll
                    for (int q = 0; q < 8; ++q)
                        sums[o][c][q] += float(values.at[q]) * float(weights.at[q]);
                }
        }
    }
#pragma unroll
    for (int o = 0; o < ROWS; ++o)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (row + o >= p.out_height || column + c >= p.out_width) continue;
            const long long pixel = ((long long)n * p.out_height + row + o) * p.out_width + column + c;
            const Operands with = operands_at(pixel * p.channels + channel, channel, 8, bias, z0, z1);
            finish_all(y, sums[o][c], with, pixel * p.row_y + channel, n, 8);
        }
}
