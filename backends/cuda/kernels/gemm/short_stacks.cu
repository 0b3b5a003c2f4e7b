// y[p][m][n] = epilogue(sum over k of a[p][m][k] * b[p][k][n]) of many products p of matrices with few rows and terms,
// such as the pixels of windows, each by its own weights: memory is what counts. A thread computes the columns of one
// word in all rows; the left matrices of a block are in shared memory.
//
// Compile-time: M, N and K, rows, columns and terms; PRODUCTS of a block, a multiple of a word's elements; THREADS;
// T, of operands, and R, of results.

#include "ptx/pdl.cuh"

constexpr int WORD = 16 / sizeof(T), COLUMNS = N / WORD;

struct alignas(16) Words {
    T at[WORD];
};

struct alignas(sizeof(R) * WORD) Results {
    R at[WORD];
};

extern "C" __global__ void __launch_bounds__(THREADS)
multiply_short_stacks(const T* a, const T* b, R* y, const T* z0, const T* z1, long long products)
{
    __shared__ Words kept[PRODUCTS * M * K / WORD];
    const long long first = blockIdx.x * (long long)PRODUCTS;
    const int here = products - first < PRODUCTS ? int(products - first) : PRODUCTS;
    const int own = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS * WORD;
    T* left = (T*)kept;
    a += first * (M * K);
    grid_dependency_sync();
    for (int i = threadIdx.x * WORD; i < here * M * K; i += THREADS * WORD)
        if (i + WORD <= here * M * K)
            kept[i / WORD] = *(const Words*)(a + i);
        else
            for (int j = i; j < here * M * K; ++j) left[j] = a[j];
    Words right[K];
    if (own < here)
#pragma unroll
        for (int k = 0; k < K; ++k)
            right[k] = *(const Words*)(b + ((first + own) * K + k) * N + column);
    __syncthreads();
    if (own >= here) return;
    left += own * M * K;
    for (int m = 0; m < M; ++m, left += K) {
        float sums[WORD] = {};
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int e = 0; e < WORD; ++e) sums[e] += float(left[k]) * float(right[k].at[e]);
        const long long row = (first + own) * M + m;
        Results result;
#pragma unroll
        for (int e = 0; e < WORD; ++e)
            result.at[e] = epilogue(sums[e], row * N + column + e, row, column + e, z0, z1);
        *(Results*)(y + row * N + column) = result;
    }
}
