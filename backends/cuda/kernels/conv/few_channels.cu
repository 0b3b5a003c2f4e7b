// A convolution of an image of few channels in C order, such as a network's first layer, whose result has its channels
// innermost. In float32 on CUDA cores: with so few terms tensor cores gain little, and the image must not be packed.
//
// A block computes FILTERS results of TILE_H x TILE_W pixels. The part of the image that they read is in shared memory, and
// so are the weights, [channel][window][FILTERS]. A thread computes eight adjacent filters of PIXELS adjacent pixels, and
// reads a row of their windows at once.
//
// Types: S, the elements of the image, which are first rounded to T; T, of weights and bias; Z and R as in epilogue.cuh.
// Compile-time: CHANNELS; KH KW; STEP_H STEP_W; TILE_H TILE_W; PIXELS; FILTERS; BIAS Z0 Z1 VECTOR_C.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"

constexpr int GROUPS = FILTERS / 8, ACROSS = TILE_W / PIXELS, THREADS = GROUPS * ACROSS * TILE_H;
constexpr int ROWS = (TILE_H - 1) * STEP_H + KH;
// What the windows of a thread cover in a row, in words of four; and a row in shared memory.
constexpr int SPAN = ((PIXELS - 1) * STEP_W + KW + 3) / 4 * 4, PITCH = (TILE_W - PIXELS) * STEP_W + SPAN;
constexpr int TERMS = CHANNELS * KH * KW;
static_assert(PIXELS * STEP_W % 4 == 0, "spans begin at words");

struct Plane {
    int filters, height, width, out_height, out_width, pad_h, pad_w;
    int row_y;         // elements from one pixel of the result to the next
    int down, across;  // tiles of an image
};

extern "C" __global__ void __launch_bounds__(THREADS)
few_channels(const S* x, const T* __restrict__ w, R* y, const T* bias, const T* z0, const T* z1, Plane p)
{
    __shared__ __align__(16) float image[CHANNELS * ROWS * PITCH];
    __shared__ __align__(16) float weights[TERMS * FILTERS];
    const int tile = in_order(blockIdx.x, gridDim.x), across = tile % p.across, down = tile / p.across % p.down;
    const int n = tile / p.across / p.down, first = blockIdx.y * FILTERS;
    const int row0 = down * TILE_H, column0 = across * TILE_W;
    const int top = row0 * STEP_H - p.pad_h, left = column0 * STEP_W - p.pad_w;

    for (int i = threadIdx.x; i < TERMS * FILTERS; i += THREADS)
        weights[i] = float(w[(long long)(i / FILTERS) * p.filters + first + i % FILTERS]);
    grid_dependency_sync();
    const S* from = x + (long long)n * CHANNELS * p.height * p.width;
#pragma unroll 4
    for (int i = threadIdx.x; i < CHANNELS * ROWS * PITCH; i += THREADS) {
        const int line = i / PITCH, u = left + i % PITCH, channel = line / ROWS, v = top + line % ROWS;
        const bool inside = (unsigned)v < (unsigned)p.height && (unsigned)u < (unsigned)p.width;
        image[i] = inside ? float(T(from[((long long)channel * p.height + v) * p.width + u])) : 0.f;
    }
    __syncthreads();

    const int group = threadIdx.x % GROUPS, place = threadIdx.x / GROUPS;
    const int column = place % ACROSS * PIXELS, row = place / ACROSS;
    float sums[PIXELS][8] = {};
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; ++channel)
#pragma unroll(KH <= 3 ? KH : 1)
        for (int r = 0; r < KH; ++r) {
            const float* line = image + (channel * ROWS + row * STEP_H + r) * PITCH + column * STEP_W;
            const float* by = weights + (channel * KH + r) * KW * FILTERS + group * 8;
            float values[SPAN];
#pragma unroll
            for (int s = 0; s < SPAN; s += 4) *(float4*)(values + s) = *(const float4*)(line + s);
#pragma unroll
            for (int s = 0; s < KW; ++s) {
                float weight[8];
                *(float4*)weight = *(const float4*)(by + s * FILTERS);
                *(float4*)(weight + 4) = *(const float4*)(by + s * FILTERS + 4);
#pragma unroll
                for (int c = 0; c < PIXELS; ++c)
#pragma unroll
                    for (int q = 0; q < 8; ++q) sums[c][q] += values[c * STEP_W + s] * weight[q];
            }
        }

    const int filter = first + group * 8;
    if (row0 + row >= p.out_height) return;
#pragma unroll
    for (int c = 0; c < PIXELS; ++c) {
        if (column0 + column + c >= p.out_width) break;
        const int pixel = (n * p.out_height + row0 + row) * p.out_width + column0 + column + c;
        const long long at = (long long)pixel * p.row_y + filter;
        epilogue_all(y, sums[c], operands_at<8>(at, pixel, filter, 8, bias, z0, z1), at, 8);
    }
}
