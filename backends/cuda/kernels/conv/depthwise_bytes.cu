// Depthwise convolutions of bytes, with results that are bytes:
// y = narrow((sum of (x - x_zero) * w + bias) * (x_scale * w_scale / y_scale), y_zero).
//
// A thread computes four adjacent channels of one pixel; images have channels last. Zero points of the weights are 0.
// Compile-time: X, Y, U, S, the types of the image, the result, the weights and scales; KH KW, the window; STEP_H STEP_W;
// DILATION_H DILATION_W; BIAS; BY_CHANNEL, whether each channel has its own scale. Generated: narrow, see quantize.cu.

#include "ptx/pdl.cuh"

typedef unsigned int u32;

constexpr int CHANNELS = 4;  // of a thread: a word

struct Image {  // sizes in pixels; channels in words
    int words, in_h, in_w, out_h, out_w, pad_h, pad_w;
};

// weights [KH * KW][channels]; bias one per channel.
extern "C" __global__ void __launch_bounds__(128)
depthwise_bytes(const X* x, const U* weights, const int* bias, const S* x_scale, const S* w_scale, const S* y_scale,
                const X* x_zero, const Y* y_zero, Y* y, long long count, Image image)
{
    const long long i = blockIdx.x * 128LL + threadIdx.x;
    if (i >= count) return;
    const int word = (int)(i % image.words);
    const long long pixel = i / image.words, row = pixel / image.out_w;
    const int column = (int)(pixel - row * image.out_w), line = (int)(row % image.out_h);
    const int first_row = line * STEP_H - image.pad_h, first_column = column * STEP_W - image.pad_w;
    int sums[CHANNELS] = {};
    grid_dependency_sync();
    const u32* from = (const u32*)x + row / image.out_h * image.in_h * image.in_w * image.words + word;
    const int zero = *x_zero;
#pragma unroll
    for (int r = 0; r < KH; ++r)
#pragma unroll
        for (int s = 0; s < KW; ++s) {
            const int at_row = first_row + r * DILATION_H, at_column = first_column + s * DILATION_W;
            if ((u32)at_row >= (u32)image.in_h || (u32)at_column >= (u32)image.in_w) continue;
            const u32 four = from[(long long)(at_row * image.in_w + at_column) * image.words];
            const u32 by = ((const u32*)weights)[(r * KW + s) * image.words + word];
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c)
                sums[c] += (int(X(four >> (8 * c))) - zero) * int(U(by >> (8 * c)));
        }
    const float to = float(*y_zero), of_x = float(*x_scale), of_y = float(*y_scale);
    u32 result = 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c) {
        const int channel = word * CHANNELS + c, sum = BIAS ? sums[c] + bias[channel] : sums[c];
        const float factor = of_x * float(w_scale[BY_CHANNEL ? channel : 0]) / of_y;
        result |= u32((unsigned char)narrow(float(sum) * factor, to)) << (8 * c);
    }
    ((u32*)y)[i] = result;
}
