// exp(x - max) / sum(exp(x - max)) over the middle axis of [outer][count][inner]; LOGARITHM gives
// x - max - log(sum) instead. The maximum is subtracted so that nothing overflows. X is the type of the
// elements, A that of the arithmetic. softmax_rows.cu handles rows, inner = 1.

#include "reduce/block.cuh"
#include "norm/softmax.cuh"

// One thread per column; adjacent threads read adjacent elements.
extern "C" __global__ void softmax_columns(const X* x, X* y, long long columns, int count,
                                           int inner)
{
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const long long at = column / inner * inner * count + column % inner;
    A peak = -A(INFINITY);
    for (int i = 0; i < count; ++i) peak = Larger()(peak, A(x[at + (long long)i * inner]));
    A sum = 0;
    for (int i = 0; i < count; ++i) sum += exp(A(x[at + (long long)i * inner]) - peak);
    for (int i = 0; i < count; ++i) {
        const long long j = at + (long long)i * inner;
        y[j] = X(result(A(x[j]), peak, sum));
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
