// Convolutions other than the implicit GEMM of simt.cu.
//
// X, W and Y are the types of input, weights and results, A that of the arithmetic. Compile-time:
// CHANNELS_LAST; BIAS; ZERO_X and ZERO_W, whether a zero point is subtracted from elements.

struct Geometry {  // three spatial axes; those that an operator lacks have size 1
    int in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

struct Strides {  // distances of neighbours, in elements
    long long image, channel, spatial[3];
};

struct Position {
    int n, channel, at[3];
};

// Results are numbered in their memory order, channels first or channels last.
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

// The baseline: one thread per result, with three loops over the window and one over the channels.
// y[n][m][o] = epilogue(bias[m] + sum over c, k of x[n][c][o*stride - pad + k*dilation] * w[m][c][k])
extern "C" __global__ void conv_naive(const X* x, const W* w, Y* y, const Y* bias, const Y* z0,
                                      const Y* z1, long long count, int filters, int group_filters,
                                      int group_channels, Strides from, Geometry g,
                                      const X* x_zero, const W* w_zero, int of_w_zero)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Position p = position(i, filters, g.out);
    const int first = p.channel / group_filters * group_channels;
    const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
    const W* weights = w + (long long)p.channel * group_channels * taps;
    const X* image = x + p.n * from.image + first * from.channel;
    const A zero_x = ZERO_X ? A(*x_zero) : A(0);
    const A zero_w = ZERO_W ? A(w_zero[p.channel * of_w_zero]) : A(0);
    A sum = BIAS ? A(bias[p.channel]) : A(0);
    int tap = 0;
    for (int a = 0; a < g.kernel[0]; ++a)
        for (int b = 0; b < g.kernel[1]; ++b)
            for (int c = 0; c < g.kernel[2]; ++c, ++tap) {
                const int u = p.at[0] * g.stride[0] - g.pad[0] + a * g.dilation[0];
                const int v = p.at[1] * g.stride[1] - g.pad[1] + b * g.dilation[1];
                const int t = p.at[2] * g.stride[2] - g.pad[2] + c * g.dilation[2];
                if (u < 0 || u >= g.in[0] || v < 0 || v >= g.in[1] || t < 0 || t >= g.in[2])
                    continue;
                const X* pixel = image + u * from.spatial[0] + v * from.spatial[1]
                                 + t * from.spatial[2];
                for (int channel = 0; channel < group_channels; ++channel)
                    sum += (A(pixel[channel * from.channel]) - zero_x)
                           * (A(weights[channel * taps + tap]) - zero_w);
            }
    y[i] = epilogue(sum, i, p.n, p.channel, z0, z1);
}

// The gradient of a convolution: input position i adds x[i] * w[k] to the results at
// i*stride - pad + k*dilation. A thread gathers all terms of one result, so no two threads write the same.
extern "C" __global__ void conv_transposed(const X* x, const W* w, Y* y, const Y* bias,
                                           const Y* z0, const Y* z1, long long count, int filters,
                                           int group_filters, int group_channels, Strides from,
                                           Geometry g)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const Position p = position(i, filters, g.out);
    const int group = p.channel / group_filters;
    const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
    const X* image = x + p.n * from.image + (long long)group * group_channels * from.channel;
    const W* weights = w + ((long long)group * group_channels * group_filters
                            + p.channel % group_filters) * taps;
    A sum = BIAS ? A(bias[p.channel]) : A(0);
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
                const X* pixel = image + at[0] * from.spatial[0] + at[1] * from.spatial[1]
                                 + at[2] * from.spatial[2];
                for (int channel = 0; channel < group_channels; ++channel)
                    sum += A(pixel[channel * from.channel])
                           * A(weights[(long long)channel * group_filters * taps + tap]);
            }
    y[i] = epilogue(sum, i, p.n, p.channel, z0, z1);
}
