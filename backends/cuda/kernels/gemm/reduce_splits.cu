// Split-K, second pass (of simt.cu): adds the partial sums of all splits, always in the same order,
// so that results are reproducible from run to run, and applies bias and epilogue.
//
// partial is [batch][splits][m][n]. Compile-time: VECTOR_C, the results per thread; BIAS;
// GROUPS: whether a batch is a group of a convolution, with its own channels.

#include "gemm/neighbours.cuh"
#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
gemm_reduce(const T* partial, R* c, const T* bias, const T* z0, const T* z1, int m, int n, int ldc,
            long long batch_c, int splits)
{
    const int per_row = (n + 3) / 4;
    const int item = blockIdx.x * 256 + threadIdx.x, batch = blockIdx.y;
    if (item >= m * per_row) return;
    const int row = item / per_row, column = (item - row * per_row) * 4;
    const long long plane = (long long)m * n;
    const T* from = partial + batch * splits * plane + (long long)row * n + column;

    grid_dependency_sync();
    float sums[4] = {};
#pragma unroll 4
    for (int split = 0; split < splits; ++split, from += plane) {
        if constexpr (VECTOR_C == 4) {
            const float4 more = *(const float4*)from;
            sums[0] += more.x;
            sums[1] += more.y;
            sums[2] += more.z;
            sums[3] += more.w;
        } else {
            for (int q = 0; q < min(4, n - column); ++q) sums[q] += from[q];
        }
    }
    const long long at = (long long)row * ldc + column;
    Neighbours<R, 4> results;
#pragma unroll
    for (int q = 0; q < 4; ++q)
        if (column + q < n) {
            const int channel = (GROUPS ? batch * n : 0) + column + q;
            const T sum = sums[q] + (BIAS ? bias[channel] : T(0));
            results.at[q] = epilogue(sum, batch * batch_c + at + q, row, channel, z0, z1);
        }
    keep(c + batch * batch_c + at, results, n - column);
#ifdef SECOND
    keep((R*)SECOND + batch * batch_c + at, second_of(results), n - column);
#endif
}
