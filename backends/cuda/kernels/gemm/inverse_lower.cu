// The inverse of n x n matrices with ones on the diagonal and zeros above it, one block per matrix. Blocks of 1, 2, 4, ...
// rows on the diagonal are inverted in pairs: that of ((a, 0), (c, b)) is ((a', 0), (-b' c a', b')).
//
// T is the type of the elements, A that of the arithmetic. Compile-time: N, a power of two that is at least n; THREADS.

#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
inverse_lower(const T* x, T* y, int n)
{
    __shared__ A given[N][N + 1], found[N][N + 1], part[N * N / 4];
    grid_dependency_sync();
    x += (long long)blockIdx.x * n * n;
    y += (long long)blockIdx.x * n * n;
    for (int i = threadIdx.x; i < N * N; i += THREADS) {
        const int r = i / N, c = i % N;
        given[r][c] = r < n && c < r ? A(x[r * n + c]) : A(0);
        found[r][c] = A(r == c);
    }
    __syncthreads();
#pragma unroll
    for (int size = 1; size < N; size *= 2) {
        // Element i belongs to pair i / size^2, and there to row i / size % size and column i % size of c.
        for (int i = threadIdx.x; i < N / 2 * size; i += THREADS) {
            const int row = i / size % size, column = i % size, top = i / (size * size) * 2 * size;
            A sum = 0;
            for (int k = column; k < size; ++k) sum += given[top + size + row][top + k] * found[top + k][top + column];
            part[i] = sum;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < N / 2 * size; i += THREADS) {
            const int row = i / size % size, column = i % size, top = i / (size * size) * 2 * size;
            A sum = 0;
            for (int k = 0; k <= row; ++k) sum += found[top + size + row][top + size + k] * part[i + (k - row) * size];
            found[top + size + row][top + column] = -sum;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n * n; i += THREADS) y[i] = T(found[i / n][i % n]);
}
