// Depthwise convolution, channels last, with one thread per pixel and channel: for channel counts that
// depthwise.cu cannot read in whole words.
//
// Compile-time: T, and R of results; KD KH KW, of a window; STEP_D STEP_H STEP_W, the stride; VOLUME, whether images have
// planes; BIAS.

#include "ptx/pdl.cuh"
#include "order.cuh"

struct Plane {
    int channels, height, width, out_height, out_width;
    int dilation_h, dilation_w, pad_h, pad_w;
    int row_x, row_y;  // elements from one pixel to the next
    int depth, out_depth, dilation_d, pad_d;
    int of_filters;  // from the filters of one image to those of the next; 0 if they share them
};

extern "C" __global__ void __launch_bounds__(128)
depthwise_pixels(const T* x, const T* w, R* y, const T* bias, const T* z0, const T* z1, int count, Plane p)
{
    const int i = in_order(blockIdx.x, gridDim.x) * 128 + threadIdx.x;
    if (i >= count) return;
    int rest = i;
    const auto next = [&](int size) {  // the coordinate along the last remaining axis, of this size
        const int whole = rest / size, found = rest - whole * size;
        rest = whole;
        return found;
    };
    const int channel = next(p.channels), pixel = rest;
    const int column = next(p.out_width), row = next(p.out_height);
    const int front = VOLUME ? next(p.out_depth) * STEP_D - p.pad_d : 0, n = rest;

    const T* image = x + (long long)n * (VOLUME ? p.depth : 1) * p.height * p.width * p.row_x + channel;
    w += (long long)n * p.of_filters;
    grid_dependency_sync();
    float sum = 0;
#pragma unroll
    for (int j = 0; j < KD * KH; ++j) {
        const int r = j % KH, v = row * STEP_H - p.pad_h + r * p.dilation_h;
        const int plane = VOLUME ? front + j / KH * p.dilation_d : 0;
        const bool exists = v >= 0 && v < p.height && (!VOLUME || (plane >= 0 && plane < p.depth));
#pragma unroll
        for (int s = 0; s < KW; ++s) {
            const int u = column * STEP_W - p.pad_w + s * p.dilation_w;
            const bool inside = exists && u >= 0 && u < p.width;
            const long long at = ((long long)plane * p.height + v) * p.width + u;
            const T value = inside ? __ldg(image + at * p.row_x) : T(0);
            sum += float(value) * float(__ldg(w + (j * KW + s) * p.channels + channel));
        }
    }
    if (BIAS) sum += float(bias[channel]);
    const long long at = (long long)pixel * p.row_y + channel;
    y[at] = epilogue(sum, at, n, channel, z0, z1);
}
