// Results of a transposed convolution from those of its phases: y[i] = epilogue(phases[(i + first) / stride] of
// phase (i + first) % stride), along each axis. Channels are innermost, those of a phase adjacent; pixels of y are
// `row` elements apart. A thread moves VECTOR adjacent channels.
//
// T is the type of the phases, R that of results, A that of the arithmetic, Index that of element indices.
// Compile-time: VECTOR; FIRST, the first of the operator's axes among three. Macro: SECOND, see gemm/epilogue.cuh.

#include "ptx/pdl.cuh"

struct Geometry {  // three spatial axes; those that an operator lacks have size 1
    int in[3], out[3], stride[3], first[3];
};

template <typename V> struct alignas(sizeof(V) * VECTOR) Words {
    V at[VECTOR];
};

extern "C" __global__ void __launch_bounds__(256)
interleave(const T* phases, R* y, const T* z0, const T* z1, Index count, int channels, int row, Geometry g)
{
    const Index i = blockIdx.x * Index(256) + threadIdx.x;
    if (i >= count) return;
    const Index words = channels / VECTOR, pixel = i / words;
    const int channel = int(i - pixel * words) * VECTOR;
    int at[3] = {};
    Index rest = pixel;
#pragma unroll
    for (int axis = 2; axis >= FIRST; --axis) {
        const Index whole = rest / g.out[axis];
        at[axis] = int(rest - whole * g.out[axis]);
        rest = whole;
    }
    Index from = rest, phase = 0, every = 1;
#pragma unroll
    for (int axis = FIRST; axis < 3; ++axis) {
        const int place = at[axis] + g.first[axis], whole = place / g.stride[axis];
        from = from * g.in[axis] + whole;
        phase = phase * g.stride[axis] + (place - whole * g.stride[axis]);
        every *= g.stride[axis];
    }
    grid_dependency_sync();
    const Words<T> read = *(const Words<T>*)(phases + (from * every + phase) * (long long)channels + channel);
    const long long to = (long long)pixel * row + channel;
    Words<R> words_of_y;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        words_of_y.at[e] = epilogue(A(read.at[e]), to + e, int(rest), channel + e, z0, z1);
    *(Words<R>*)(y + to) = words_of_y;
#ifdef SECOND
#pragma unroll
    for (int e = 0; e < VECTOR; ++e)
        words_of_y.at[e] = second::epilogue(A(words_of_y.at[e]), 0, 0, 0, nullptr, nullptr);
    *(Words<R>*)((R*)SECOND + to) = words_of_y;
#endif
}
