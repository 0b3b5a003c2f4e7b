// The transform of inputs of a Winograd convolution in halves, [point][tile][channel], as halves.cu reads them: one matrix
// per point, in the order of store_halves.cuh. A warp has a tile and 64 channels, which have one scale for all points;
// a thread has two channels, whose halves are adjacent.
//
// Compile-time: OUT; POOL.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/halves.cuh"
#include "gemm/store_halves.cuh"
#include "conv/winograd.cuh"

__device__ __forceinline__ float greatest_of(const float (&d)[EDGE][EDGE])
{
    float most = 0;
#pragma unroll
    for (int a = 0; a < POINTS; ++a) most = fmaxf(most, finite_or_zero(fabsf(d[a / EDGE][a % EDGE])));
    return most;
}

extern "C" __global__ void __launch_bounds__(THREADS)
winograd_inputs_in_halves(const float* x, unsigned char* v, int tiles, int rows, long long of_point, Plane p)
{
    const int lane = threadIdx.x % 32, eight = lane / 4, blocks = p.channels / BLOCK_TERMS;
    const int number = in_order(blockIdx.x, gridDim.x) * (THREADS / 32) + threadIdx.x / 32;
    const int row = number / blocks, block = number - row * blocks;
    if (row >= tiles) return;
    grid_dependency_sync();
    float d[2][EDGE][EDGE];
    float most = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        read_tile(x, Tile(row, p), block * BLOCK_TERMS + eight * 8 + lane % 4 + i * 4, p, d[i]);
        transform_inputs(d[i]);
        most = fmaxf(most, greatest_of(d[i]));
    }
#pragma unroll
    for (int other = 1; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
    const RowScale by(__float_as_uint(most));
    const int step = block * 2 + eight / 4, position = eight % 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int a = 0; a < POINTS; ++a) {
        const RowsInHalves to = {v + a * of_point, rows, p.channels};
        const Halves found = halves_of_pair(d[0][a / EDGE][a % EDGE], d[1][a / EDGE][a % EDGE], by);
        unsigned char* at = to.place(row, step, position);
        *(u32*)at = found.high;
        *(u32*)((unsigned long long)at ^ 64) = found.low;
        if (lane == a % 32) to.store_scale(row, block, by.inverse);
    }
}
