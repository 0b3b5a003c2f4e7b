// Split-K, second pass (of multistage.cu where CTAs form no clusters): adds the partial sums of all
// splits, always in the same order, and applies bias and epilogue.
//
// partial is [batch][splits][m][n] in float32. Compile-time: Z, R, VECTOR_C, BIAS, Z0 and Z1 as in multistage.cu;
// GROUPS: whether a batch is a group of a convolution, with its own channels.

#include "gemm/epilogue.cuh"
#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
mma_reduce(const float* partial, R* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc,
           int batch_c, int splits)
{
    const int per_row = (n + 7) / 8;
    const int item = blockIdx.x * 256 + threadIdx.x, batch = blockIdx.y;
    if (item >= m * per_row) return;
    const int row = item / per_row, column = (item - row * per_row) * 8;
    const long long plane = (long long)m * n;
    const float* from = partial + batch * splits * plane + (long long)row * n + column;

    grid_dependency_sync();
    float sums[8] = {};
#pragma unroll 4
    for (int split = 0; split < splits; ++split, from += plane) {
        if constexpr (VECTOR_C == 8) {
            const float4 low = *(const float4*)from, high = *(const float4*)(from + 4);
            sums[0] += low.x, sums[1] += low.y, sums[2] += low.z, sums[3] += low.w;
            sums[4] += high.x, sums[5] += high.y, sums[6] += high.z, sums[7] += high.w;
        } else {
#pragma unroll
            for (int q = 0; q < 8; ++q)
                if (column + q < n) sums[q] += from[q];
        }
    }
    const long long at = (long long)batch * batch_c + (long long)row * ldc + column;
    const int channel = (GROUPS ? batch * n : 0) + column, room = n - column;
    epilogue_all(c, sums, operands_at<8>(at, row, channel, room, bias, z0, z1), at, room);
}
