// Poolings over windows. One thread computes one result; results are numbered as they lie in
// memory, so neighbouring threads read neighbouring elements in either order of the channels. Pixels
// of y lie `row` elements apart where channels are innermost.
//
// X is the type of the elements, A the arithmetic, LOWEST the least element. Compile-time: KIND;
// CHANNELS_LAST; KD KH KW; UNROLL (windows that are not large); POSITIONS, whether MaxPool reports
// where it found the greatest element; COLUMN_MAJOR, whether it counts the spatial axes in Fortran
// order.

enum { MAX, AVERAGE, AVERAGE_PADDED, NORM };

struct Geometry {  // three spatial axes; those that an operator lacks have size 1
    int in[3], out[3], stride[3], dilation[3], pad[3], pad_end[3];
};

struct Strides {  // distances of neighbours, in elements
    long long image, channel, spatial[3];
};

// |x| to the power of p; integers, which have no norms, stay.
template <typename V> __device__ __forceinline__ V raised(V x, V p)
{
    if constexpr (V(0.5) != V(0)) {
        return pow(fabs(x), p);
    } else {
        return x;
    }
}

extern "C" __global__ void pool(const X* x, X* y, long long* positions, long long count,
                                int channels, int row, double power, Strides from, Geometry g)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    int at[3], channel;
    long long rest = i, place = i;
    if (CHANNELS_LAST) {
        channel = rest % channels;
        rest /= channels;
        place = rest * row + channel;
    }
    for (int axis = 2; axis >= 0; --axis) {
        at[axis] = rest % g.out[axis];
        rest /= g.out[axis];
    }
    if (!CHANNELS_LAST) {
        channel = rest % channels;
        rest /= channels;
    }
    const X* image = x + rest * from.image + channel * from.channel;
    A result = KIND == MAX ? A(LOWEST) : A(0);
    long long found = 0;
    int elements = 0;
#pragma unroll UNROLL
    for (int a = 0; a < KD; ++a)
#pragma unroll UNROLL
        for (int b = 0; b < KH; ++b)
#pragma unroll UNROLL
            for (int c = 0; c < KW; ++c) {
                const int u = at[0] * g.stride[0] - g.pad[0] + a * g.dilation[0];
                const int v = at[1] * g.stride[1] - g.pad[1] + b * g.dilation[1];
                const int t = at[2] * g.stride[2] - g.pad[2] + c * g.dilation[2];
                if (KIND == AVERAGE_PADDED)
                    elements += u < g.in[0] + g.pad_end[0] && v < g.in[1] + g.pad_end[1]
                                && t < g.in[2] + g.pad_end[2];
                if (u < 0 || u >= g.in[0] || v < 0 || v >= g.in[1] || t < 0 || t >= g.in[2])
                    continue;
                const A value = A(image[u * from.spatial[0] + v * from.spatial[1]
                                        + t * from.spatial[2]]);
                if (KIND == MAX) {
                    const bool greater = value > result || value != value;  // NaN stays
                    if (POSITIONS && (greater || (elements == 0)))
                        found = COLUMN_MAJOR ? u + g.in[0] * (v + (long long)g.in[1] * t)
                                             : ((long long)u * g.in[1] + v) * g.in[2] + t;
                    result = greater ? value : result;
                    ++elements;
                } else {
                    result += KIND == NORM ? raised(value, A(power)) : value;
                    if (KIND == AVERAGE) ++elements;
                }
            }
    if (KIND == AVERAGE || KIND == AVERAGE_PADDED) result /= A(elements);
    if (KIND == NORM) result = raised(result, A(1) / A(power));
    if (y) y[place] = X(result);
    if (POSITIONS) {
        const long long plane = (long long)g.in[0] * g.in[1] * g.in[2];
        positions[i] = (rest * channels + channel) * plane + found;
    }
}
