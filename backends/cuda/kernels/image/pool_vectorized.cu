// Pooling of 16-bit elements, channels last, in float32. A thread computes eight adjacent channels of one
// pixel; for global pooling a block computes the same channels of whole images, its threads dividing the pixels.
//
// Compile-time: T; KIND_OF: 0 maximum, 1 mean without padding, 2 mean with padding; KH KW;
// BATCH, the pixels of a window that a thread loads at once; and what gemm/epilogue.cuh needs: means pass through
// an epilogue.

#include "ptx/pdl.cuh"
#include "gemm/epilogue.cuh"
#include "elementwise/greater.cuh"

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
    const int i = blockIdx.x * 128 + threadIdx.x;
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
    if constexpr (KIND_OF == MAX) {
        *(Elements*)(y + at) = found;
    } else {
#pragma unroll
        for (int q = 0; q < 8; ++q) sums[q] /= elements;
        epilogue_all(y, sums, with, at, 8);
    }
}

extern "C" __global__ void __launch_bounds__(256)
pool_images(const T* x, T* y, int channels, int pixels, int row_x)
{
    __shared__ float parts[8][8][8];  // of each warp, chunk of channels and channel
    const int chunk = threadIdx.x % 8, lane = threadIdx.x / 8, first = blockIdx.x * 8 + chunk;
    grid_dependency_sync();
    float results[8];
#pragma unroll
    for (int q = 0; q < 8; ++q) results[q] = KIND_OF == MAX ? -INFINITY : 0.f;
    const auto add = [&](float& result, float value) {
        if (KIND_OF == MAX)
            result = value > result || value != value ? value : result;
        else
            result += value;
    };
    if (first * 8 < channels) {
        const T* image = x + (long long)blockIdx.y * pixels * row_x + first * 8;
#pragma unroll 4
        for (int pixel = lane; pixel < pixels; pixel += 32) {
            const Elements values = *(const Elements*)(image + (long long)pixel * row_x);
#pragma unroll
            for (int q = 0; q < 8; ++q) add(results[q], float(values.at[q]));
        }
    }
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        add(results[q], __shfl_xor_sync(~0u, results[q], 8));
        add(results[q], __shfl_xor_sync(~0u, results[q], 16));
        if (threadIdx.x % 32 < 8) parts[threadIdx.x / 32][chunk][q] = results[q];
    }
    __syncthreads();
    const int channel = blockIdx.x * 64 + threadIdx.x;
    if (threadIdx.x >= 64 || channel >= channels) return;
    float result = parts[0][threadIdx.x / 8][threadIdx.x % 8];
    for (int warp = 1; warp < 8; ++warp) add(result, parts[warp][threadIdx.x / 8][threadIdx.x % 8]);
    y[(long long)blockIdx.y * channels + channel] = T(KIND_OF == MAX ? result : result / pixels);
}
