// y = finish(x * factor + shift), with a pair (factor, shift) for each channel: a batch
// normalization that no convolution could take over. VECTOR neighbours a thread; `inner` elements
// of a channel lie together, or channels are innermost (CHANNELS_LAST). T is the type of the
// elements, S that of scale and shift, M that of mean and variance, A the arithmetic, Index counts
// elements. Pixels of x and y lie row_x and row_y elements apart, more than they have channels where
// they are slices.

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

struct Pair {
    A factor, shift;
};

template <typename Find>
__device__ __forceinline__ void apply(const T* x, T* y, Find pair, const T* z0, const T* z1,
                                      Index count, int channels, int inner, int row_x,
                                      int row_y)
{
    const Index i = (blockIdx.x * (Index)128 + threadIdx.x) * VECTOR;
    if (i >= count) return;
    const Index pixel = i / (CHANNELS_LAST ? channels : inner);
    const int channel = CHANNELS_LAST ? i - pixel * channels : pixel % channels;
    Words words = *(const Words*)(x + (CHANNELS_LAST ? (long long)pixel * row_x + channel : i));
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const int own = channel + (CHANNELS_LAST ? q : 0);
        const Pair by = pair(own);
        words.at[q] = finish(A(words.at[q]) * by.factor + by.shift, i + q, 0, own, z0, z1);
    }
    *(Words*)(y + (CHANNELS_LAST ? (long long)pixel * row_y + channel : i)) = words;
}

extern "C" __global__ void __launch_bounds__(128)
scale(const T* x, T* y, const Pair* pairs, const T* z0, const T* z1, Index count,
      int channels, int inner, int row_x, int row_y)
{
    apply(x, y, [=](int c) { return pairs[c]; }, z0, z1, count, channels, inner, row_x, row_y);
}

// The same with statistics that are only known at run time.
extern "C" __global__ void __launch_bounds__(128)
normalize(const T* x, T* y, const S* scale, const S* b, const M* mean, const M* var, const T* z0,
          const T* z1, Index count, int channels, int inner, int row_x, int row_y,
          double epsilon)
{
    const auto pair = [=](int c) {
        const A factor = A(scale[c]) / sqrt(A(var[c]) + A(epsilon));
        return Pair{factor, A(b[c]) - A(mean[c]) * factor};
    };
    apply(x, y, pair, z0, z1, count, channels, inner, row_x, row_y);
}
