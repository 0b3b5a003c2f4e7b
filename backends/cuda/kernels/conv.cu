// Convolutions other than the implicit GEMM of gemm.cu.

struct Geometry {  // three spatial axes; those that an operator lacks have size 1
    int in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

struct Strides {  // distances of neighbours, in elements
    long long image, channel, spatial[3];
};

struct Position {
    int n, channel, at[3];
};

// Results are numbered channels first, or channels last, as they lie in memory.
__device__ __forceinline__ Position position(long long i, int channels, const int (&size)[3])
{
    Position p;
    if (CHANNELS_LAST) {
        p.channel = i % channels;
        i /= channels;
    }
    for (int axis = 2; axis >= 0; --axis) {
        p.at[axis] = i % size[axis];
        i /= size[axis];
    }
    if (!CHANNELS_LAST) {
        p.channel = i % channels;
        i /= channels;
    }
    p.n = i;
    return p;
}

// The baseline: one thread, one result, three loops over the window and one over the channels.
// y[n][m][o] = finish(bias[m] + sum over c, k of x[n][c][o*stride - pad + k*dilation] * w[m][c][k])
extern "C" __global__ void conv_naive(const T* x, const T* w, T* y, const T* bias, const T* z0,
                                      const T* z1, long long count, int filters, int group_filters,
                                      int group_channels, Strides from, Geometry g)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Position p = position(i, filters, g.out);
    const int first = p.channel / group_filters * group_channels;
    const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
    const T* weights = w + (long long)p.channel * group_channels * taps;
    const T* image = x + p.n * from.image + first * from.channel;
    T sum = BIAS ? bias[p.channel] : T(0);
    int tap = 0;
    for (int a = 0; a < g.kernel[0]; ++a)
        for (int b = 0; b < g.kernel[1]; ++b)
            for (int c = 0; c < g.kernel[2]; ++c, ++tap) {
                const int u = p.at[0] * g.stride[0] - g.pad[0] + a * g.dilation[0];
                const int v = p.at[1] * g.stride[1] - g.pad[1] + b * g.dilation[1];
                const int t = p.at[2] * g.stride[2] - g.pad[2] + c * g.dilation[2];
                if (u < 0 || u >= g.in[0] || v < 0 || v >= g.in[1] || t < 0 || t >= g.in[2])
                    continue;
                const T* pixel = image + u * from.spatial[0] + v * from.spatial[1]
                                 + t * from.spatial[2];
                for (int channel = 0; channel < group_channels; ++channel)
                    sum += pixel[channel * from.channel] * weights[channel * taps + tap];
            }
    y[i] = finish(sum, i, p.n, p.channel, z0, z1);
}

// The gradient of a convolution: input position i adds x[i] * w[k] to the results at
// i*stride - pad + k*dilation. A thread collects what arrives at one result; nobody writes twice.
extern "C" __global__ void conv_transposed(const T* x, const T* w, T* y, const T* bias,
                                           const T* z0, const T* z1, long long count, int filters,
                                           int group_filters, int group_channels, Strides from,
                                           Geometry g)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Position p = position(i, filters, g.out);
    const int group = p.channel / group_filters;
    const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
    const T* image = x + p.n * from.image + (long long)group * group_channels * from.channel;
    const T* weights = w + ((long long)group * group_channels * group_filters
                            + p.channel % group_filters) * taps;
    T sum = BIAS ? bias[p.channel] : T(0);
    int tap = 0;
    for (int a = 0; a < g.kernel[0]; ++a)
        for (int b = 0; b < g.kernel[1]; ++b)
            for (int c = 0; c < g.kernel[2]; ++c, ++tap) {
                const int u = p.at[0] + g.pad[0] - a * g.dilation[0];
                const int v = p.at[1] + g.pad[1] - b * g.dilation[1];
                const int t = p.at[2] + g.pad[2] - c * g.dilation[2];
                if (u < 0 || v < 0 || t < 0 || u % g.stride[0] || v % g.stride[1]
                    || t % g.stride[2])
                    continue;
                const int at[3] = {u / g.stride[0], v / g.stride[1], t / g.stride[2]};
                if (at[0] >= g.in[0] || at[1] >= g.in[1] || at[2] >= g.in[2]) continue;
                const T* pixel = image + at[0] * from.spatial[0] + at[1] * from.spatial[1]
                                 + at[2] * from.spatial[2];
                for (int channel = 0; channel < group_channels; ++channel)
                    sum += pixel[channel * from.channel]
                           * weights[(long long)channel * group_filters * taps + tap];
            }
    y[i] = finish(sum, i, p.n, p.channel, z0, z1);
}
