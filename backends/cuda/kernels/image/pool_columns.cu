// Poolings of floats, channels last, whose windows overlap. A thread computes a word of 16 bytes of adjacent channels
// of DOWN pixels of a column: it reads each row of their windows once, and takes the maximum or sum of its pixels once.
//
// Compile-time: T; KIND_OF: 0 maximum, 1 mean without padding, 2 mean with padding; VECTOR, the elements of a word;
// KH KW; STEP_H STEP_W, between windows; DOWN; KIND as in greater.cuh; PLAIN, whether results are stored as they are;
// and what gemm/epilogue.cuh needs.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"

typedef unsigned int u32;
#include "elementwise/divide.cuh"

enum { MAX, AVERAGE, AVERAGE_PADDED };

constexpr int ROWS = (DOWN - 1) * STEP_H + KH;  // that a thread reads

struct Plane {
    int height, width, out_height, out_width, pad_h, pad_w, pad_bottom, pad_right;
    int row_x, row_y;            // elements from one pixel to the next
    int words, strips;           // of a pixel; of DOWN rows of an image
    Divisor by_word, by_column, by_strip;
};

typedef Neighbours<T, VECTOR> Elements;

#include "elementwise/greater.cuh"
#include "elementwise/maximum.cuh"
#include "image/mean.cuh"

// What has been found of a window: the greatest elements, or sums.
template <int KIND_OF> struct Found {
    float at[VECTOR];

    __device__ __forceinline__ Found(const Elements& from)
    {
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) at[q] = float(from.at[q]);
    }
    __device__ __forceinline__ Found() {}
    __device__ __forceinline__ void add(const Found& other)
    {
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) at[q] += other.at[q];
    }
};

template <> struct Found<MAX> : Elements {
    __device__ __forceinline__ Found(const Elements& from) : Elements(from) {}
    __device__ __forceinline__ Found() {}
    __device__ __forceinline__ void add(const Found& other)
    {
        if constexpr (sizeof(T) == 2) {
            *this = greater(*this, other);
        } else {
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) this->at[q] = maximum(this->at[q], other.at[q]);
        }
    }
};

// The number of places of a window from `begin` on that a mean counts, of `size` places and `padding` behind them.
__device__ __forceinline__ int counted(int begin, int extent, int size, int padding)
{
    if constexpr (KIND_OF == AVERAGE_PADDED) return min(begin + extent, size + padding) - begin;
    return max(min(begin + extent, size) - max(begin, 0), 0);
}

extern "C" __global__ void __launch_bounds__(128)
pool_columns(const T* x, R* y, const Z* z0, const Z* z1, int count, Plane p)
{
    const int i = in_order(blockIdx.x, gridDim.x) * 128 + threadIdx.x;
    const int pixel = divide(i, p.by_word), line = divide(pixel, p.by_column), n = divide(line, p.by_strip);
    const int channel = (i - pixel * p.words) * VECTOR, column = pixel - line * p.out_width;
    const int row = (line - n * p.strips) * DOWN, top = row * STEP_H - p.pad_h, left = column * STEP_W - p.pad_w;
    grid_dependency_sync();
    if (i >= count) return;
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    const long long at = ((long long)(n * p.out_height + row) * p.out_width + column) * p.row_y + channel;
    Elements none;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) none.at[q] = KIND_OF == MAX ? T(-INFINITY) : T(0);
    Found<KIND_OF> found[DOWN];
#pragma unroll
    for (int v = 0; v < ROWS; ++v) {
        Elements pixels[KW];
#pragma unroll
        for (int u = 0; u < KW; ++u) {
            pixels[u] = none;
            const bool inside = (u32)(top + v) < (u32)p.height && (u32)(left + u) < (u32)p.width;
            if (inside) pixels[u] = *(const Elements*)(image + ((top + v) * p.width + left + u) * p.row_x);
        }
        Found<KIND_OF> of_row(pixels[0]);
#pragma unroll
        for (int u = 1; u < KW; ++u) of_row.add(Found<KIND_OF>(pixels[u]));
#pragma unroll
        for (int down = 0; down < DOWN; ++down) {
            const int first = down * STEP_H;
            if (v == first) found[down] = of_row;
            else if (v > first && v < first + KH) found[down].add(of_row);
        }
    }
    const int across = KIND_OF == MAX ? 1 : counted(left, KW, p.width, p.pad_right);
#pragma unroll
    for (int down = 0; down < DOWN; ++down) {
        if (row + down >= p.out_height) break;
        const long long to = at + down * p.out_width * p.row_y;
        if constexpr (KIND_OF == MAX && PLAIN) {
            *(Elements*)(y + to) = *(const Elements*)&found[down];
        } else {
            const int elements = KIND_OF == MAX ? 1 : across * counted(top + down * STEP_H, KH, p.height, p.pad_bottom);
            const float share = 1.0f / elements;
            float results[VECTOR];
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) {
                const float all = float(found[down].at[q]);
                results[q] = KIND_OF == MAX ? all : sizeof(T) == 2 ? mean_by(share, all, elements) : all / elements;
            }
            epilogue_all(y, results, operands_at<VECTOR>(to, n, channel, VECTOR, nullptr, z0, z1), to, VECTOR);
        }
    }
}
