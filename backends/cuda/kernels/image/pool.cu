// Pooling over windows. A thread computes one pixel of VECTOR adjacent channels; threads are numbered in the
// memory order of their results, so that adjacent threads read adjacent elements in either channel order.
// Pixels of y are `row` elements apart where channels are innermost.
//
// X is the type of the elements, A that of the arithmetic, T that of the epilogue's operands, R that of results, I
// that of element indices, LOWEST the lowest number.
// Compile-time: KIND; CHANNELS_LAST; VECTOR; FIRST, the first of the operator's axes among three; KD KH
// KW; BATCH, the elements of a window that a thread loads at once; POSITIONS, whether MaxPool also returns the indices of the maxima
// (-1: only padding); COLUMN_MAJOR, whether these number the spatial axes in Fortran order.

#include "ptx/pdl.cuh"
#include "elementwise/maximum.cuh"

enum { MAX, AVERAGE, AVERAGE_PADDED, NORM };

struct Geometry {  // three spatial axes; those that an operator lacks have size 1
    int in[3], out[3], stride[3], dilation[3], pad[3], pad_end[3];
};

struct Strides {  // distances of neighbours, in elements
    long long image, channel, spatial[3];
};

struct alignas(sizeof(X) * VECTOR) Words {
    X at[VECTOR];
};

struct alignas(sizeof(R) * VECTOR < 16 ? sizeof(R) * VECTOR : 16) Results {
    R at[VECTOR];
};

// Where an element of a window is, from its first one on.
struct Place {
    int u, v, t;
    bool inside;  // the image, not its padding

    Place() = default;
    __device__ __forceinline__ Place(const int (&begin)[3], int tap, const Geometry& g)
        : u(begin[0] + tap / (KH * KW) * g.dilation[0]), v(begin[1] + tap / KW % KH * g.dilation[1]),
          t(begin[2] + tap % KW * g.dilation[2]),
          inside(u >= 0 && u < g.in[0] && v >= 0 && v < g.in[1] && t >= 0 && t < g.in[2])
    {
    }
};

// |x| to the power of p; integers, which have no norms, are unchanged.
template <typename V> __device__ __forceinline__ V raised(V x, V p)
{
    if constexpr (V(0.5) != V(0)) {
        return pow(fabs(x), p);
    } else {
        return x;
    }
}

extern "C" __global__ void __launch_bounds__(128)
pool(const X* x, R* y, long long* positions, const T* z0, const T* z1, I count, int channels, int row,
     double power, Strides from, Geometry g)
{
    const I i = blockIdx.x * I(128) + threadIdx.x;
    if (i >= count) return;
    I rest = i;
    const auto next = [&](int size) {  // the coordinate along the last remaining axis, of this size
        const I whole = rest / size;
        const int found = rest - whole * size;
        rest = whole;
        return found;
    };
    int at[3] = {}, channel = 0;
    if (CHANNELS_LAST) channel = next(channels / VECTOR) * VECTOR;
    const I pixel = rest;  // where channels are innermost
#pragma unroll
    for (int axis = 2; axis >= FIRST; --axis) at[axis] = next(g.out[axis]);
    if (!CHANNELS_LAST) channel = next(channels / VECTOR) * VECTOR;

    const X* image = x + rest * from.image + channel * from.channel;
    int begin[3];
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) begin[axis] = at[axis] * g.stride[axis] - g.pad[axis];
    grid_dependency_sync();
    A results[VECTOR];
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) results[q] = KIND == MAX ? A(LOWEST) : A(0);
    long long found = -1;
    int elements = 0;
#pragma unroll 1
    for (int tap = 0; tap < KD * KH * KW; tap += BATCH) {
        Words values[BATCH];
        Place places[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            places[i] = Place(begin, tap + i, g);
            const auto& [u, v, t, inside] = places[i];
            const X* place = image + (u * I(from.spatial[0]) + v * I(from.spatial[1]) + t * I(from.spatial[2]));
            values[i] = {};
            if (CHANNELS_LAST) {
                if (inside) values[i] = *(const Words*)place;
            } else {
#pragma unroll
                for (int q = 0; q < VECTOR; ++q)
                    if (inside) values[i].at[q] = place[q * from.channel];
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const auto& [u, v, t, inside] = places[i];
            if (KIND == AVERAGE) elements += inside;
            if (KIND == AVERAGE_PADDED)
                elements += u < g.in[0] + g.pad_end[0] && v < g.in[1] + g.pad_end[1]
                            && t < g.in[2] + g.pad_end[2];
            const A first = A(values[i].at[0]);
            if (POSITIONS && inside && (found < 0 || first > results[0] || first != first))
                found = COLUMN_MAJOR ? u + g.in[0] * (v + (long long)g.in[1] * t)
                                     : ((long long)u * g.in[1] + v) * g.in[2] + t;
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) {
                const A value = inside ? A(values[i].at[q]) : KIND == MAX ? A(LOWEST) : A(0);
                if (KIND == MAX)
                    results[q] = maximum(results[q], value);
                else
                    results[q] += KIND == NORM ? raised(value, A(power)) : value;
            }
        }
    }
    const auto plane = [](const int* sizes) { return (long long)sizes[0] * sizes[1] * sizes[2]; };
    const long long lead = (long long)rest * channels + channel;  // a channel of an image
    const long long step = CHANNELS_LAST ? 1 : plane(g.out);
    const long long at_y = CHANNELS_LAST ? (long long)pixel * row + channel
                                         : lead * plane(g.out) + ((I)at[0] * g.out[1] + at[1]) * g.out[2] + at[2];
    Results stored;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        if (KIND == AVERAGE || KIND == AVERAGE_PADDED) results[q] /= A(elements);
        if (KIND == NORM) results[q] = raised(results[q], A(1) / A(power));
        stored.at[q] = epilogue(results[q], at_y + q * step, rest, channel + q, z0, z1);
    }
    if (y && CHANNELS_LAST) {
        *(Results*)(y + at_y) = stored;
    } else if (y) {
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) y[at_y + q * step] = stored.at[q];
    }
    if (POSITIONS) positions[i] = found < 0 ? -1 : lead * plane(g.in) + found;
}
