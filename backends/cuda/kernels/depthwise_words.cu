// Depthwise convolution of 16-bit elements, channels last: bound by memory. A thread computes eight
// neighbouring channels of PER neighbouring pixels of a row, so that it reads each input once for all
// windows of its pixels. Sums in float32; weights are [kernel][channels].
//
// Compile-time: T; KH KW; STEP and SPREAD, stride and dilation along a row; PER; BIAS; Z0 and Z1
// as in mma.cu.

#include "early.cuh"
#include "finish.cuh"

struct Plane {
    int channels, height, width, out_height, out_width;
    int stride_h, dilation_h, pad_h, pad_w;
    int row_x, row_y;  // elements from one pixel to the next
};

extern "C" __global__ void __launch_bounds__(128)
depthwise_words(const T* x, const T* w, T* y, const T* bias, const T* z0, const T* z1, int count,
                Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    const int chunks = p.channels / 8, strips = (p.out_width + PER - 1) / PER;
    int rest = i / chunks;
    const int channel = (i - rest * chunks) * 8;
    const int first = rest % strips * PER;
    rest /= strips;
    const int row = rest % p.out_height, n = rest / p.out_height;
    begin_early();
    if (i >= count) return;

    constexpr int SPAN = (PER - 1) * STEP + (KW - 1) * SPREAD + 1;  // inputs of a row
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    float sums[PER][8] = {};
#pragma unroll
    for (int r = 0; r < KH; ++r) {
        const int v = row * p.stride_h - p.pad_h + r * p.dilation_h;
        if (v < 0 || v >= p.height) continue;
        Words weights[KW];
#pragma unroll
        for (int s = 0; s < KW; ++s) weights[s] = *(const Words*)(w + (r * KW + s) * p.channels + channel);
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            const int u = first * STEP - p.pad_w + j;
            Words values = {};
            if (u >= 0 && u < p.width)
                values = *(const Words*)(image + (long long)(v * p.width + u) * p.row_x);
#pragma unroll
            for (int o = 0; o < PER; ++o)
#pragma unroll
                for (int s = 0; s < KW; ++s)
                    if (o * STEP + s * SPREAD == j)
#pragma unroll
                        for (int q = 0; q < 8; ++q)
                            sums[o][q] += float(values.at[q]) * float(weights[s].at[q]);
        }
    }
#pragma unroll
    for (int o = 0; o < PER; ++o) {
        if (first + o >= p.out_width) break;
        const long long pixel = ((long long)n * p.out_height + row) * p.out_width + first + o;
        const Operands with = operands_at(pixel * p.channels + channel, channel, 8, bias, z0, z1);
        finish_all(y, sums[o], with, pixel * p.row_y + channel, n, 8);
    }
}
