// The transform of sums [point][tile][filter] of a Winograd convolution, whose results are stored in halves, as pixels of
// an image (store_halves.cuh, OF_PIXELS). A warp has a tile and 64 filters, and a thread two adjacent ones. Before they
// store, lanes exchange results, so that halves of a thread are adjacent.
//
// Compile-time: OUT; BIAS; POOL; THREADS.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/halves.cuh"
#include "gemm/store_halves.cuh"
#include "conv/winograd.cuh"

constexpr int SIDE = POOL ? 2 : 1, STORED = OUT / SIDE;  // rows and columns of what a tile stores

// Computes the results of one filter of a tile, with the epilogue, or the maxima of squares of them.
__device__ __forceinline__ void finish(const float (&m)[EDGE][EDGE], float (&stored)[STORED][STORED], const Tile& tile,
                                       int channel, float shift, const float* z0, const float* z1, const Plane& p)
{
    float half[EDGE][OUT];
#pragma unroll
    for (int a = 0; a < EDGE; ++a) results_of(m[a], half[a]);
#pragma unroll
    for (int b = 0; b < OUT; ++b) {
        float column[EDGE], out[OUT];
#pragma unroll
        for (int a = 0; a < EDGE; ++a) column[a] = half[a][b];
        results_of(column, out);
#pragma unroll
        for (int a = 0; a < OUT; ++a) {
            const int row = tile.row + a, place = tile.column + b;
            if (row >= p.out_height || place >= p.out_width) continue;
            const long long at = (long long)tile.image * p.to_image + (long long)(row / SIDE) * p.to_row
                                 + (long long)(place / SIDE) * p.to_column + channel;
            const float result = epilogue(out[a] + shift, at, tile.image, channel, z0, z1);
            float& kept = stored[a / SIDE][b / SIDE];
            kept = POOL && a % 2 + b % 2 ? maximum(kept, result) : result;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
winograd_results_in_halves(const float* sums, unsigned char* halves, const float* bias, const float* z0, const float* z1,
                           int tiles, Plane p)
{
    const int lane = threadIdx.x % 32, column = lane % 4, blocks = p.filters / BLOCK_TERMS;
    const int number = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int place = number / blocks, block = number - place * blocks;
    if (place >= tiles) return;
    const Tile tile(place, p);
    const long long of_point = (long long)tiles * p.filters;
    const int channel = block * BLOCK_TERMS + lane * 2;
    const float* from = sums + (long long)place * p.filters + channel;
    float stored[2][STORED][STORED] = {};
    float m[2][EDGE][EDGE];
    grid_dependency_sync();
#pragma unroll
    for (int a = 0; a < POINTS; ++a) {
        const float2 found = *(const float2*)(from + a * of_point);
        m[0][a / EDGE][a % EDGE] = found.x, m[1][a / EDGE][a % EDGE] = found.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
        finish(m[i], stored[i], tile, channel + i, BIAS ? bias[channel + i] : 0.0f, z0, z1, p);
    const int height = p.out_height / SIDE, width = p.out_width / SIDE;
    const RowsInHalves to = {halves, p.images * height * width, p.filters};
    const bool upper = column / 2;
    const int step = block * 2 + lane / 16, position = lane / 4 % 4 * 8 + column % 2 * 4 + upper * 2;
    float most[STORED][STORED];
#pragma unroll
    for (int a = 0; a < STORED * STORED; ++a) {
        const int row = a / STORED, column = a % STORED;
        most[row][column] = fmaxf(finite_or_zero(fabsf(stored[0][row][column])), finite_or_zero(fabsf(stored[1][row][column])));
    }
#pragma unroll
    for (int other = 1; other < 32; other *= 2)
#pragma unroll
        for (int a = 0; a < STORED * STORED; ++a) {
            float& greatest = most[a / STORED][a % STORED];
            greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, other));
        }
#pragma unroll
    for (int a = 0; a < STORED; ++a)
#pragma unroll
        for (int b = 0; b < STORED; ++b) {
            const int row = tile.row / SIDE + a, at_column = tile.column / SIDE + b;
            const float theirs = __shfl_xor_sync(~0u, upper ? stored[0][a][b] : stored[1][a][b], 2);
            if (row >= height || at_column >= width) continue;
            const int pixel = (tile.image * height + row) * width + at_column;
            const RowScale by(__float_as_uint(most[a][b]));
            const Halves found = halves_of_pair(upper ? theirs : stored[0][a][b], upper ? stored[1][a][b] : theirs, by);
            unsigned char* at = to.place(pixel, step, position);
            *(u32*)at = found.high;
            *(u32*)((unsigned long long)at ^ 64) = found.low;
            if (lane == 0) to.store_scale(pixel, block, by.inverse);
        }
}
