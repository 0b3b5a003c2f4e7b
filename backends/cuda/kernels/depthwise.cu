// Depthwise convolution: every channel has filters of its own and nothing is summed over channels,
// so it is bound by memory. A thread computes VECTOR neighbouring channels of one pixel in
// channels-last order (weights [kernel][channels]), or one pixel of one channel in plain order.
//
// Compile-time: KH KW; VECTOR (4 or 1); CHANNELS_LAST; BIAS.

struct Plane {
    int channels, height, width, out_height, out_width;
    int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int of_image, of_channel, of_row, of_column;  // distances of neighbours in the input
    int row;                                      // and of pixels in the result, channels last
};

struct Words {
    T at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    Words found;
    if constexpr (VECTOR == 4) {
        *(float4*)found.at = __ldg((const float4*)from);
    } else {
        found.at[0] = __ldg(from);
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(128)
depthwise(const T* x, const T* w, T* y, const T* bias, const T* z0, const T* z1, int count, Plane p)
{
    const int i = (blockIdx.x * 128 + threadIdx.x) * VECTOR;
    if (i >= count) return;
    int channel, row, column, n, rest = i;
    long long place = i;
    if (CHANNELS_LAST) {
        channel = rest % p.channels;
        rest /= p.channels;
        place = (long long)rest * p.row + channel;
    }
    column = rest % p.out_width;
    rest /= p.out_width;
    row = rest % p.out_height;
    rest /= p.out_height;
    if (!CHANNELS_LAST) {
        channel = rest % p.channels;
        rest /= p.channels;
    }
    n = rest;

    const T* image = x + (long long)n * p.of_image + channel * p.of_channel;
    T sums[VECTOR] = {};
#pragma unroll
    for (int r = 0; r < KH; ++r) {
        const int v = row * p.stride_h - p.pad_h + r * p.dilation_h;
        if (v < 0 || v >= p.height) continue;
#pragma unroll
        for (int s = 0; s < KW; ++s) {
            const int u = column * p.stride_w - p.pad_w + s * p.dilation_w;
            if (u < 0 || u >= p.width) continue;
            const Words values = words(image + v * p.of_row + u * p.of_column);
            const Words weights = words(w + (r * KW + s) * p.channels + channel);
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) sums[q] += values.at[q] * weights.at[q];
        }
    }
    Words results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const T sum = sums[q] + (BIAS ? bias[channel + q] : T(0));
        results.at[q] = finish(sum, i + q, n, channel + q, z0, z1);
    }
    if constexpr (VECTOR == 4) {
        *(float4*)(y + place) = *(const float4*)results.at;
    } else {
        y[place] = results.at[0];
    }
}
