// Copies pixels of an image in channels-last order, zero-padded to PADDED channels, so that a convolution can
// read whole words. One thread per word of up to 16 bytes.
//
// Types: T, an unsigned integer of the elements' size. Compile-time: PADDED; WORD, elements per word.

#include "ptx/pdl.cuh"

struct alignas(sizeof(T) * WORD) Words {
    T at[WORD];
};

// Pixels of x are `pitch` elements apart.
extern "C" __global__ void __launch_bounds__(256)
pad_channels(const T* x, T* y, int words, int channels, int pitch)
{
    constexpr int PER_PIXEL = PADDED / WORD;
    const int i = blockIdx.x * 256 + threadIdx.x;
    const int pixel = i / PER_PIXEL, first = (i - pixel * PER_PIXEL) * WORD;
    grid_dependency_sync();
    if (i >= words) return;
    const T* from = x + (long long)pixel * pitch + first;
    Words word = {};
#pragma unroll
    for (int q = 0; q < WORD; ++q)
        if (first + q < channels) word.at[q] = from[q];
    *(Words*)(y + (long long)i * WORD) = word;
}
