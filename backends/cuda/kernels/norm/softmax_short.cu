// Like softmax_rows.cu for short rows, which are read once: LANES threads of a warp keep a row in registers, and a
// warp has several.
//
// A row may also be a few columns, side by side, whose elements take turns: of heads that are mixed, for example. An
// element of a word is of another column than its neighbours then, and lanes of one column are GROUPS apart.
//
// X is the type of the elements, R that of results, A that of the arithmetic. Compile-time: LANES; ROWS of a block;
// VECTOR, elements read at once, a divisor of the row; PER, such words of a thread; COLUMNS of a row, 1 or words;
// LOGARITHM.

#include "ptx/pdl.cuh"
#include "norm/softmax.cuh"

template <typename V> struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

constexpr int GROUPS = COLUMNS == 1 ? 1 : COLUMNS / VECTOR;
constexpr int OWN = COLUMNS == 1 ? 1 : VECTOR;  // columns of a thread

// All threads of a column get the result.
template <typename Combine> __device__ __forceinline__ A over_lanes(A value, Combine combine)
{
#pragma unroll
    for (int other = LANES / 2; other >= GROUPS; other /= 2)
        value = combine(value, __shfl_xor_sync(~0u, value, other));
    return value;
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
softmax_short(const X* x, R* y, long long rows, int count)
{
    const int lane = threadIdx.x % LANES;
    const long long row = blockIdx.x * (long long)ROWS + threadIdx.x / LANES;
    const int own = row < rows ? count : 0;  // without a row, a thread takes part in the sums of others
    x += row * count;
    y += row * count;
    grid_dependency_sync();
    A values[PER][VECTOR], top[OWN], base[OWN], sum[OWN] = {};
#pragma unroll
    for (int c = 0; c < OWN; ++c) top[c] = -A(INFINITY);
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * LANES) * VECTOR;
        Words<X> words = {};
        if (at < own) words = *(const Words<X>*)(x + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            const A value = at < own ? A(words.at[e]) : -A(INFINITY);
            A& greatest = top[e % OWN];
            values[i][e] = value;
            greatest = value > greatest || value != value ? value : greatest;  // a NaN stays
        }
    }
#pragma unroll
    for (int c = 0; c < OWN; ++c) {
        top[c] = over_lanes(top[c], [](A a, A b) { return a > b || a != a ? a : b; });
        base[c] = top[c] == -A(INFINITY) ? A(0) : top[c];
    }
#pragma unroll
    for (int i = 0; i < PER; ++i)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) sum[e % OWN] += exp(values[i][e] - base[e % OWN]);
#pragma unroll
    for (int c = 0; c < OWN; ++c) sum[c] = over_lanes(sum[c], [](A a, A b) { return a + b; });
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * LANES) * VECTOR;
        if (at >= own) break;
        Words<R> words;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) words.at[e] = R(A(X(result(values[i][e], top[e % OWN], sum[e % OWN]))));
        *(Words<R>*)(y + at) = words;
    }
}
