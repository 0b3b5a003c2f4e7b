// Like softmax_short.cu for rows that no words divide: a thread per row, and the rows of a block pass through shared
// memory in words of 16 bytes.
//
// X is the type of the elements, A that of the arithmetic. Compile-time: COUNT elements of a row; ROWS of a block, a
// multiple of 16; LOGARITHM.

#include "ptx/pdl.cuh"
#include "norm/softmax.cuh"

static constexpr int WORD = 16 / sizeof(X);

struct alignas(16) Words {
    X at[WORD];
};

// Copies elements that are adjacent, the last of which may be part of a word.
__device__ __forceinline__ void copy(const X* from, X* to, int count)
{
    for (int i = threadIdx.x * WORD; i < count; i += ROWS * WORD)
        if (i + WORD <= count)
            *(Words*)(to + i) = *(const Words*)(from + i);
        else
            for (int j = i; j < count; ++j) to[j] = from[j];
}

extern "C" __global__ void __launch_bounds__(ROWS)
softmax_serial(const X* x, X* y, long long rows)
{
    __shared__ Words kept[ROWS * COUNT / WORD];
    const long long first = blockIdx.x * (long long)ROWS;
    const int here = rows - first < ROWS ? int(rows - first) : ROWS;
    X* row = (X*)kept + threadIdx.x * COUNT;
    grid_dependency_sync();
    copy(x + first * COUNT, (X*)kept, here * COUNT);
    __syncthreads();
    if (threadIdx.x < here) {
        A values[COUNT], top = -A(INFINITY), sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            values[i] = A(row[i]);
            top = values[i] > top || values[i] != values[i] ? values[i] : top;  // a NaN stays
        }
        const A base = top == -A(INFINITY) ? A(0) : top;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum += exp(values[i] - base);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) row[i] = X(result(values[i], top, sum));
    }
    __syncthreads();
    copy((const X*)kept, y + first * COUNT, here * COUNT);
}
