// y = finish(x * factor + shift), with a pair (factor, shift) for each channel: a batch
// normalization that no convolution could take over. VECTOR neighbours a thread; INNER elements of
// a channel lie together, or channels are innermost (CHANNELS_LAST).

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

extern "C" __global__ void __launch_bounds__(128)
scale(const T* x, T* y, const float2* pairs, const T* z0, const T* z1, long long count,
      int channels, int inner)
{
    const long long i = (blockIdx.x * 128LL + threadIdx.x) * VECTOR;
    if (i >= count) return;
    Words words = *(const Words*)(x + i);
    const int channel = CHANNELS_LAST ? i % channels : i / inner % channels;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const int own = channel + (CHANNELS_LAST ? q : 0);
        const float2 pair = __ldg(pairs + own);
        words.at[q] = finish(words.at[q] * pair.x + pair.y, i + q, 0, own, z0, z1);
    }
    *(Words*)(y + i) = words;
}
