// y[m][n] = epilogue(sum over k of a[m][k] * b[k][n] + bias[n]) of rows with few elements, such as coordinates: results
// are most of what is moved. A thread keeps some columns of b in registers, for all rows that it computes of these.
//
// Compile-time: K and N, terms and columns; VECTOR, adjacent columns of a thread, which divide N; ACROSS, threads along
// a row; ROWS of a block; T, of operands, and R, of results; BIAS.

#include "ptx/pdl.cuh"

constexpr int THREADS = 256, BESIDE = THREADS / ACROSS;

template <typename V, int BYTES = VECTOR * sizeof(V)> struct alignas(BYTES < 16 ? BYTES : 16) Words {
    V at[VECTOR];
};

extern "C" __global__ void __launch_bounds__(THREADS)
multiply_few_terms(const T* a, const T* b, R* y, const T* bias, const T* z0, const T* z1, int m)
{
    __shared__ float terms[ROWS][K];
    const int column = (blockIdx.y * ACROSS + threadIdx.x % ACROSS) * VECTOR;
    float weights[K][VECTOR], shift[VECTOR] = {};
    if (column < N) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const auto words = *(const Words<T>*)(b + k * N + column);
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) weights[k][v] = float(words.at[v]);
        }
#pragma unroll
        for (int v = 0; v < VECTOR; ++v)
            if constexpr (BIAS) shift[v] = float(bias[column + v]);
    }
    grid_dependency_launch();
    grid_dependency_sync();
    const long long first = (long long)blockIdx.x * ROWS;
    const int rows = min((long long)ROWS, m - first);
    for (int i = threadIdx.x; i < rows * K; i += THREADS) terms[i / K][i % K] = float(a[first * K + i]);
    __syncthreads();
    if (column >= N || threadIdx.x >= ACROSS * BESIDE) return;
    for (int r = threadIdx.x / ACROSS; r < rows; r += BESIDE) {
        const long long row = first + r, at = row * N + column;
        Words<R> results;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
            float sum = shift[v];
#pragma unroll
            for (int k = 0; k < K; ++k) sum += terms[r][k] * weights[k][v];
            results.at[v] = epilogue(sum, at + v, row, column + v, z0, z1);
        }
        *(Words<R>*)(y + at) = results;
    }
}
