// Pooling of 16-bit elements, channels last, in float32. A thread computes eight adjacent channels of one
// pixel.
//
// Compile-time: T; KIND_OF: 0 maximum, 1 mean without padding, 2 mean with padding; KH KW;
// BATCH, the pixels of a window that a thread loads at once; PLAIN, whether results are stored as they are; and what
// gemm/epilogue.cuh needs.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "elementwise/greater.cuh"
#include "image/mean.cuh"

enum { MAX, AVERAGE, AVERAGE_PADDED };

struct Plane {
    int channels, height, width, out_height, out_width;
    int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w, pad_bottom, pad_right;
    int row_x, row_y;  // elements from one pixel to the next
};

typedef Neighbours<T, 8> Elements;

extern "C" __global__ void __launch_bounds__(128)
pool_words(const T* x, R* y, const Z* z0, const Z* z1, int count, Plane p)
{
    const int i = in_order(blockIdx.x, gridDim.x) * 128 + threadIdx.x;
    const int chunks = p.channels / 8;
    int rest = i / chunks;
    const int channel = (i - rest * chunks) * 8;
    const int column = rest % p.out_width;
    rest /= p.out_width;
    const int row = rest % p.out_height, n = rest / p.out_height;
    const int top = row * p.stride_h - p.pad_h, left = column * p.stride_w - p.pad_w;
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    grid_dependency_sync();
    if (i >= count) return;

    const long long at = (long long)(i / chunks) * p.row_y + channel;
    const Operands<8> with = operands_at<8>(at, n, channel, 8, nullptr, z0, z1);
    Elements found;
    float sums[8] = {};
#pragma unroll
    for (int q = 0; q < 8; ++q) found.at[q] = T(-INFINITY);
    int elements = 0;
#pragma unroll 1
    for (int tap = 0; tap < KH * KW; tap += BATCH) {
        Elements values[BATCH];
        bool inside[BATCH];
#pragma unroll
        for (int e = 0; e < BATCH; ++e) {
            const int v = top + (tap + e) / KW * p.dilation_h, u = left + (tap + e) % KW * p.dilation_w;
            inside[e] = v >= 0 && v < p.height && u >= 0 && u < p.width;
            values[e] = {};
            if (inside[e]) values[e] = *(const Elements*)(image + (long long)(v * p.width + u) * p.row_x);
            if (KIND_OF == AVERAGE) elements += inside[e];
            if (KIND_OF == AVERAGE_PADDED)
                elements += v < p.height + p.pad_bottom && u < p.width + p.pad_right;
        }
#pragma unroll
        for (int e = 0; e < BATCH; ++e) {
            if constexpr (KIND_OF == MAX) {
                const Elements most = greater(found, values[e]);
                if (inside[e]) found = most;
            } else {
#pragma unroll
                for (int q = 0; q < 8; ++q) sums[q] += float(values[e].at[q]);
            }
        }
    }
    if constexpr (KIND_OF == MAX && PLAIN) {
        *(Elements*)(y + at) = found;
    } else {
        const float share = 1.0f / elements;
#pragma unroll
        for (int q = 0; q < 8; ++q) sums[q] = KIND_OF == MAX ? float(found.at[q]) : mean_by(share, sums[q], elements);
        epilogue_all(y, sums, with, at, 8);
    }
}
