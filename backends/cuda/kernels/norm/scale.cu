// y = epilogue(x * factor + shift), with a pair (factor, shift) for each channel: a batch normalization
// that was not folded into a convolution. VECTOR adjacent elements per thread; the `inner` elements of a
// channel are contiguous, or channels are innermost (CHANNELS_LAST) and a thread computes those of PIXELS
// pixels. T is the type of the elements, S that of scale and shift, M that of mean and variance, A that of
// the arithmetic, Index that of element indices. Pixels of x and y are row_x and row_y elements apart, which
// is more than the number of channels for slices.

#include "ptx/pdl.cuh"

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

struct alignas(sizeof(R) * VECTOR < 16 ? sizeof(R) * VECTOR : 16) Results {
    R at[VECTOR];
};

struct Pair {
    A factor, shift;
};

struct alignas(VECTOR * sizeof(Pair) < 16 ? VECTOR * sizeof(Pair) : 16) Pairs {
    Pair at[VECTOR];
};

__device__ __forceinline__ void store(const Words& words, const Pairs& by, R* y, Index i, int channel,
                                      const T* z0, const T* z1)
{
    Results results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const A value = A(words.at[q]) * by.at[q].factor + by.at[q].shift;
        results.at[q] = epilogue(value, i + q, 0, channel + (CHANNELS_LAST ? q : 0), z0, z1);
    }
    *(Results*)y = results;
}

// `find` returns the pairs of VECTOR channels, or that of one channel VECTOR times.
template <typename Find>
__device__ __forceinline__ void apply(const T* x, R* y, Find find, const T* z0, const T* z1,
                                      Index count, int channels, int inner, int row_x,
                                      int row_y)
{
    const Index thread = blockIdx.x * (Index)128 + threadIdx.x;
    if constexpr (CHANNELS_LAST) {
        const int per_pixel = channels / VECTOR;
        const Index group = thread / per_pixel, pixels = count / channels;
        const int channel = (thread - group * per_pixel) * VECTOR;
        const Index pixel = group * PIXELS;
        if (pixel >= pixels) return;
        grid_dependency_sync();
        const Pairs by = find(channel);
        Words words[PIXELS];
#pragma unroll
        for (int p = 0; p < PIXELS; ++p)
            if (pixel + p < pixels)
                words[p] = *(const Words*)(x + (long long)(pixel + p) * row_x + channel);
#pragma unroll
        for (int p = 0; p < PIXELS; ++p)
            if (pixel + p < pixels)
                store(words[p], by, y + (long long)(pixel + p) * row_y + channel,
                      (pixel + p) * channels + channel, channel, z0, z1);
    } else {
        const Index i = thread * VECTOR;
        if (i >= count) return;
        const int channel = i / inner % channels;
        grid_dependency_sync();
        store(*(const Words*)(x + i), find(channel), y + i, i, channel, z0, z1);
    }
}

extern "C" __global__ void __launch_bounds__(128)
scale(const T* x, R* y, const Pair* pairs, const T* z0, const T* z1, Index count,
      int channels, int inner, int row_x, int row_y)
{
    const auto find = [=](int channel) {
        if constexpr (CHANNELS_LAST) return *(const Pairs*)(pairs + channel);
        Pairs same;
        for (Pair& by : same.at) by = pairs[channel];
        return same;
    };
    apply(x, y, find, z0, z1, count, channels, inner, row_x, row_y);
}

// The same with statistics that are known only at run time.
extern "C" __global__ void __launch_bounds__(128)
normalize(const T* x, R* y, const S* scale, const S* b, const M* mean, const M* var, const T* z0,
          const T* z1, Index count, int channels, int inner, int row_x, int row_y,
          double epsilon)
{
    const auto find = [=](int channel) {
        Pairs found;
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) {
            const int c = channel + (CHANNELS_LAST ? q : 0);
            const A factor = A(scale[c]) / sqrt(A(var[c]) + A(epsilon));
            found.at[q] = Pair{factor, A(b[c]) - A(mean[c]) * factor};
        }
        return found;
    };
    apply(x, y, find, z0, z1, count, channels, inner, row_x, row_y);
}
