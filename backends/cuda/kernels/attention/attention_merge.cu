// Split-K attention, second pass: combines the partial results that CTAs stored for parts of the keys
// (attention_parts.cuh). y = sum of all parts / sum of their weights, each part rescaled from its own maximum score to
// the overall maximum. The order of additions is fixed. One block per row of queries; rows that see no key yield 0.
//
// Compile-time: SIZE, the distance in elements between the sums of two parts; WARPS.

#include "ptx/pdl.cuh"
#include "attention/steps.cuh"

constexpr int THREADS = 32 * WARPS;

template <typename Combine> __device__ __forceinline__ float over_warp(float x, Combine combine)
{
#pragma unroll
    for (int other = 16; other; other /= 2) x = combine(x, __shfl_xor_sync(~0u, x, other));
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_merge(const float* sums, const float2* beside, T* y, Steps of_y, int parts, int heads,
                int rows, int size, float steepness)
{
    __shared__ __align__(16) float found[WARPS][SIZE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = blockIdx.x % rows, head = blockIdx.x / rows % heads, n = blockIdx.x / rows / heads;
    grid_dependency_sync();
    const float2* const own = beside + (long long)blockIdx.x * parts;
    const float* const of_parts = sums + (long long)blockIdx.x * parts * SIZE;

    float most = -INFINITY, total = 0;
    for (int part = lane; part < parts; part += 32) most = fmaxf(most, own[part].x);
    most = over_warp(most, [](float a, float b) { return fmaxf(a, b); });
    if (most == -INFINITY) most = 0;
    for (int part = lane; part < parts; part += 32)
        total += own[part].y * exp2f((own[part].x - most) * steepness);
    total = over_warp(total, [](float a, float b) { return a + b; });

    for (int column = lane * 4; column < size; column += 128) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int part = warp; part < parts; part += WARPS) {
            const float by = exp2f((own[part].x - most) * steepness);
            const float4 from = *(const float4*)(of_parts + (long long)part * SIZE + column);
            sum.x += from.x * by;
            sum.y += from.y * by;
            sum.z += from.z * by;
            sum.w += from.w * by;
        }
        *(float4*)(found[warp] + column) = sum;
    }
    __syncthreads();
    const float by = total == 0 ? 0.0f : 1 / total;
    T* const to = y + n * of_y.batch + head * of_y.head + row * of_y.row;
    for (int column = threadIdx.x; column < size; column += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += found[w][column];
        to[column] = T(sum * by);
    }
}
