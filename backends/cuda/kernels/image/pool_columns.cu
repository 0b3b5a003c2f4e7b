// MaxPool of floats, channels last, whose windows overlap. A thread computes a word of 16 bytes of adjacent channels of DOWN
// pixels of a column: it reads each row of their windows once, and takes the maximum of its pixels once.
//
// Compile-time: T; VECTOR, the elements of a word; KH KW; STEP_H STEP_W, between windows; DOWN; KIND as in greater.cuh.

#include "ptx/pdl.cuh"
#include "order.cuh"

typedef unsigned int u32;
#include "elementwise/divide.cuh"

constexpr int ROWS = (DOWN - 1) * STEP_H + KH;  // that a thread reads

struct Plane {
    int height, width, out_height, out_width, pad_h, pad_w;
    int row_x, row_y;            // elements from one pixel to the next
    int words, strips;           // of a pixel; of DOWN rows of an image
    Divisor by_word, by_column, by_strip;
};

struct alignas(16) Words {
    T at[VECTOR];
};

#include "elementwise/greater.cuh"
#include "elementwise/maximum.cuh"

__device__ __forceinline__ Words greatest_of(Words a, const Words& b)
{
    if constexpr (sizeof(T) == 2) return greater(a, b);
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) a.at[q] = maximum(a.at[q], b.at[q]);
    return a;
}

extern "C" __global__ void __launch_bounds__(128)
pool_columns(const T* x, T* y, int count, Plane p)
{
    const int i = in_order(blockIdx.x, gridDim.x) * 128 + threadIdx.x;
    const int pixel = divide(i, p.by_word), line = divide(pixel, p.by_column), n = divide(line, p.by_strip);
    const int channel = (i - pixel * p.words) * VECTOR, column = pixel - line * p.out_width;
    const int row = (line - n * p.strips) * DOWN, top = row * STEP_H - p.pad_h, left = column * STEP_W - p.pad_w;
    grid_dependency_sync();
    if (i >= count) return;
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    Words best[DOWN];
#pragma unroll
    for (int v = 0; v < ROWS; ++v) {
        Words found[KW];
#pragma unroll
        for (int u = 0; u < KW; ++u) {
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) found[u].at[q] = T(-INFINITY);
            const bool inside = (u32)(top + v) < (u32)p.height && (u32)(left + u) < (u32)p.width;
            if (inside) found[u] = *(const Words*)(image + ((top + v) * p.width + left + u) * p.row_x);
        }
#pragma unroll
        for (int u = 1; u < KW; ++u) found[0] = greatest_of(found[0], found[u]);
#pragma unroll
        for (int down = 0; down < DOWN; ++down) {
            const int first = down * STEP_H;
            if (v == first) best[down] = found[0];
            else if (v > first && v < first + KH) best[down] = greatest_of(best[down], found[0]);
        }
    }
    T* to = y + ((long long)(n * p.out_height + row) * p.out_width + column) * p.row_y + channel;
#pragma unroll
    for (int down = 0; down < DOWN; ++down)
        if (row + down < p.out_height) *(Words*)(to + down * p.out_width * p.row_y) = best[down];
}
