// exp(x - max) / sum(exp(x - max)) over the middle axis of [outer][count][inner]; LOGARITHM gives
// x - max - log(sum) instead. The maximum is subtracted so that nothing overflows. X is the type of the
// elements, R that of results, A that of the arithmetic. softmax_rows.cu handles rows, inner = 1.
//
// Compile-time: LOGARITHM; COLUMNS and DOWN, powers of two.

#include "reduce/block.cuh"
#include "norm/softmax.cuh"

// Combines a value of each of the threads that share a column.
template <typename Combine> __device__ __forceinline__ A over_column(A value, Combine combine)
{
    if constexpr (DOWN > 1) {
        __shared__ A parts[DOWN][COLUMNS];
        const int own = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
        __syncthreads();  // they may still be read from the reduction before
        parts[part][own] = value;
#pragma unroll
        for (int other = DOWN / 2; other; other /= 2) {
            __syncthreads();
            if (part < other) parts[part][own] = combine(parts[part][own], parts[part + other][own]);
        }
        __syncthreads();
        value = parts[0][own];
    }
    return value;
}

// A block has COLUMNS columns, each of which DOWN threads share; adjacent threads read adjacent elements.
extern "C" __global__ void __launch_bounds__(COLUMNS * DOWN)
softmax_columns(const X* x, R* y, long long columns, int count, int inner)
{
    const long long column = blockIdx.x * (long long)COLUMNS + threadIdx.x % COLUMNS;
    const int first = threadIdx.x / COLUMNS, end = column < columns ? count : 0;
    const long long at = column / inner * inner * count + column % inner;
    A peak = -A(INFINITY);
#pragma unroll 4
    for (int i = first; i < end; i += DOWN) peak = Larger()(peak, A(x[at + (long long)i * inner]));
    peak = over_column(peak, Larger());
    A sum = 0;
#pragma unroll 4
    for (int i = first; i < end; i += DOWN) sum += exp(A(x[at + (long long)i * inner]) - peak);
    sum = over_column(sum, Plus());
#pragma unroll 4
    for (int i = first; i < end; i += DOWN) {
        const long long j = at + (long long)i * inner;
        y[j] = R(A(X(result(A(x[j]), peak, sum))));
    }
}

// Hardmax: 1 at the first maximum of a column, 0 elsewhere. One thread per column.
extern "C" __global__ void hardmax(const X* x, X* y, long long columns, int count, int inner)
{
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const long long at = column / inner * inner * count + column % inner;
    int found = 0;
    A peak = A(x[at]);
    for (int i = 0; i < count; ++i) {
        const A value = A(x[at + (long long)i * inner]);
        y[at + (long long)i * inner] = X(0.0f);
        if (value > peak || (value != value && peak == peak)) {
            peak = value;
            found = i;
        }
    }
    y[at + (long long)found * inner] = X(1.0f);
}
