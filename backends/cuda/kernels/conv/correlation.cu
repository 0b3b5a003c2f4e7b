// y[n, k, i, j] = scale * the sum over c of a[n, c, i, j] * b[n, c, i + row, j + column], with a row and a column for
// each k: correlation of two images (optical flow, stereo), all with channels last. One thread per element of y.
//
// A, B and T are the types of the elements, S that of the sums. Compile-time: VECTOR, the channels that are read at a
// time.

#include "ptx/pdl.cuh"
#include "elementwise/words.cuh"

struct Image {  // elements from one sample, row and pixel to the next
    Index sample, row, pixel;
};

// `places` has the place in b of what belongs to the first pixel, for each k.
extern "C" __global__ void __launch_bounds__(256)
correlation(const A* a, const B* b, const int* places, T* y, Index count, Index shifts, Index height, Index width,
            Index channels, Image of_a, Image of_b, Index pitch, double scale)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index pixel = i / shifts, k = i - pixel * shifts, line = pixel / width, column = pixel - line * width;
    const Index sample = line / height, row = line - sample * height;
    const int place = places[k];
    grid_dependency_sync();
    a += sample * of_a.sample + row * of_a.row + column * of_a.pixel;
    b += sample * of_b.sample + row * of_b.row + column * of_b.pixel + place;
    S sum = 0;
#pragma unroll 4
    for (Index c = 0; c < channels; c += VECTOR) {
        const Words<A> left = words<VECTOR>(a + c);
        const Words<B> right = words<VECTOR>(b + c);
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) sum += S(left.at[q]) * S(right.at[q]);
    }
    y[pixel * pitch + k] = T(sum * S(scale));
}
