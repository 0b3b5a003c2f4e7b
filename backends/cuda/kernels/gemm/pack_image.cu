// Converts an image of few channels to channels last, with channels zero-padded to PADDED and rows to
// `padded_width`, `left` pixels of padding before the first. So a convolution can read whole words.
// A thread moves one pixel, and with PIXELS 2 its neighbour as well: then windows begin at multiples
// of 16 bytes, whatever their stride.
//
// Types: S, the elements of the image, and T, those that it writes: the same unsigned integer of their size, or numbers
// to round. Compile-time: PADDED; PIXELS.

#include "ptx/pdl.cuh"

struct alignas(sizeof(T) * (PADDED < 8 ? PADDED : 8)) Words {
    T at[PADDED < 8 ? PADDED : 8];
};

extern "C" __global__ void __launch_bounds__(256)
pack_image(const S* x, T* y, int count, int channels, int height, int width, int padded_width,
           int left)
{
    constexpr int WORD = PADDED < 8 ? PADDED : 8;
    const int i = blockIdx.x * 256 + threadIdx.x;
    int rest = i / padded_width;
    const int column = i - rest * padded_width - left, n = rest / height;
    rest -= n * height;
    grid_dependency_sync();
    if (i >= count) return;
    const long long plane = (long long)height * width;
    const S* from = x + n * channels * plane + (long long)rest * width + column;
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) {
        const bool inside = column + p >= 0 && column + p < width;
#pragma unroll
        for (int c = 0; c < PADDED; c += WORD) {
            Words words = {};
#pragma unroll
            for (int q = 0; q < WORD; ++q)
                if (inside && c + q < channels) words.at[q] = T(from[p + (c + q) * plane]);
            *(Words*)(y + ((long long)i * PIXELS + p) * PADDED + c) = words;
        }
    }
}
