// y[m][n] = epilogue(sum over k of a[m][k] * b[k][n] + bias[n]) of matrices with short rows, such as layers over the
// heads of an attention: memory is what counts. A thread computes whole rows; b is in shared memory.
//
// Compile-time: K and N, terms and columns; ALIGNED_A and ALIGNED_Y, to how many bytes rows are aligned; PER, rows of
// a thread; T, of operands, and R, of results; BIAS.

#include "ptx/pdl.cuh"

constexpr int THREADS = 256;

template <typename V, int COUNT, int BYTES> struct alignas(BYTES) Row {
    V at[COUNT];
};

extern "C" __global__ void __launch_bounds__(THREADS)
multiply_short(const T* a, const T* b, R* y, const T* bias, const T* z0, const T* z1, int m)
{
    __shared__ float weights[K][N], shift[N];
    for (int i = threadIdx.x; i < K * N; i += THREADS) weights[i / N][i % N] = float(b[i]);
    for (int i = threadIdx.x; i < N; i += THREADS) shift[i] = BIAS ? float(bias[i]) : 0.0f;
    __syncthreads();
    grid_dependency_sync();
#pragma unroll
    for (int part = 0; part < PER; ++part) {
        const int row = (blockIdx.x * PER + part) * THREADS + threadIdx.x;
        if (row >= m) return;
        const auto own = *(const Row<T, K, ALIGNED_A>*)(a + (long long)row * K);
        float sums[N];
#pragma unroll
        for (int n = 0; n < N; ++n) sums[n] = shift[n];
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int n = 0; n < N; ++n) sums[n] += float(own.at[k]) * weights[k][n];
        Row<R, N, ALIGNED_Y> result;
#pragma unroll
        for (int n = 0; n < N; ++n)
            result.at[n] = epilogue(sums[n], (long long)row * N + n, row, n, z0, z1);
        *(Row<R, N, ALIGNED_Y>*)(y + (long long)row * N) = result;
    }
}
