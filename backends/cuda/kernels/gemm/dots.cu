// y[m][n] = epilogue(sum over k of a[m][k] * b[k][n]) of stacks of matrices that would leave tiles empty: with a single row or
// column, or with a few elements. Operands may be broadcast along any axis of the stack; memory is what counts.
//
// LANES adjacent threads add up the terms of a result. Compile-time: T, of operands, and R, of results; THREADS; LANES; RANK,
// the number of batch axes.

#include "ptx/pdl.cuh"

struct Ints {
    long long at[RANK];
};

extern "C" __global__ void __launch_bounds__(THREADS)
dots(const T* a, const T* b, R* y, const T* z0, const T* z1, int count, int m, int n, int k, Ints stack, Ints of_a, Ints of_b)
{
    const int number = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int at = min(number, count - 1), column = at % n, row = at / n % m;
    int rest = at / n / m;
    a += (long long)row * k, b += column;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const int size = (int)stack.at[axis], own = rest % size;
        a += own * of_a.at[axis], b += own * of_b.at[axis];
        rest /= size;
    }
    grid_dependency_sync();
    float sum = 0;
#pragma unroll 4
    for (int i = lane; i < k; i += LANES) sum += float(a[i]) * float(b[(long long)i * n]);
#pragma unroll
    for (int other = LANES / 2; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane == 0 && number < count) y[at] = epilogue(sum, at, row, column, z0, z1);
}
