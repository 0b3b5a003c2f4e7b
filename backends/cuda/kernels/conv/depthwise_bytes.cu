// Depthwise convolutions of bytes, with results that are bytes:
// y = narrow((sum of (x - x_zero) * w + bias) * (x_scale * w_scale / y_scale), y_zero).
//
// A thread computes four adjacent channels of RUN adjacent pixels of a row; images have channels last. Zero points of the
// weights are 0. Compile-time: X, Y, U, S, the types of the image, the result, the weights and scales; KH KW, the window;
// STEP_H STEP_W; DILATION_H DILATION_W; RUN; BIAS; BY_CHANNEL, whether each channel has its own scale. Generated: narrow, see
// quantize.cu.

using u32 = unsigned int;

#include "elementwise/divide.cuh"
#include "ptx/pdl.cuh"

constexpr int CHANNELS = 4;  // of a thread: a word
constexpr int REACH = (RUN - 1) * STEP_W + (KW - 1) * DILATION_W + 1;  // columns that the windows of a thread cover

struct Image {  // sizes in pixels; channels in words; runs in a row of the result
    int words, runs, in_h, in_w, out_h, out_w, pad_h, pad_w;
    Divisor by_words, by_runs, by_rows;
};

// weights [KH * KW][channels]; bias one per channel.
extern "C" __global__ void __launch_bounds__(128)
depthwise_bytes(const X* x, const U* weights, const int* bias, const S* x_scale, const S* w_scale, const S* y_scale,
                const X* x_zero, const Y* y_zero, Y* y, int count, Image image)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= count) return;
    const int run = divide(i, image.by_words), word = i - run * image.words, row = divide(run, image.by_runs);
    const int sample = divide(row, image.by_rows), column = (run - row * image.runs) * RUN;
    const int first_row = (row - sample * image.out_h) * STEP_H - image.pad_h, first_column = column * STEP_W - image.pad_w;
    grid_dependency_sync();
    const u32* const from = (const u32*)x + (long long)sample * image.in_h * image.in_w * image.words + word;
    const int zero = *x_zero;
    const u32 outside = (zero & 255) * 0x01010101u;
    int sums[RUN][CHANNELS] = {}, totals[CHANNELS] = {};  // of products; of the weights that are multiplied
#pragma unroll
    for (int r = 0; r < KH; ++r) {
        const int at_row = first_row + r * DILATION_H;
        if ((u32)at_row >= (u32)image.in_h) continue;
        const u32* const line = from + (long long)at_row * image.in_w * image.words;
        u32 four[REACH];
#pragma unroll
        for (int s = 0; s < REACH; ++s) {
            const int at_column = first_column + s;
            four[s] = (u32)at_column < (u32)image.in_w ? line[(long long)at_column * image.words] : outside;
        }
#pragma unroll
        for (int s = 0; s < KW; ++s) {
            const u32 by = ((const u32*)weights)[(r * KW + s) * image.words + word];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                const int weight = int(U(by >> (8 * c)));
                totals[c] += weight;
#pragma unroll
                for (int p = 0; p < RUN; ++p)
                    sums[p][c] += int(X(four[p * STEP_W + s * DILATION_W] >> (8 * c))) * weight;
            }
        }
    }
    const float to = float(*y_zero), of_x = float(*x_scale), of_y = float(*y_scale);
    u32 results[RUN] = {};
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const int channel = word * CHANNELS + c, shift = (BIAS ? bias[channel] : 0) - zero * totals[c];
        const float factor = of_x * float(w_scale[BY_CHANNEL ? channel : 0]) / of_y;
#pragma unroll
        for (int p = 0; p < RUN; ++p)
            results[p] |= u32((unsigned char)narrow(float(sums[p][c] + shift) * factor, to)) << (8 * c);
    }
    u32* const into = (u32*)y + ((long long)row * image.out_w + column) * image.words + word;
#pragma unroll
    for (int p = 0; p < RUN; ++p)
        if (column + p < image.out_w) into[(long long)p * image.words] = results[p];
}
