// y[m][n] = epilogue(sum over k of x[m][k] * w[n][k] + bias[n]) for at most eight rows m.
//
// Bound by memory: the weights are read once, whole warps along k, several words in flight a
// thread, and every word meets all rows. `x` is small and stays in the L1 cache.
//
// Compile-time: M rows; PARTS, the warps that share one n (few outputs would leave the memory
// idle otherwise); VECTOR, the elements of one load; BIAS; CONSTANT, whether `w` never changes.

#include "ptx/pdl.cuh"

constexpr int WARPS = 4;

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

// Constants may take the path for data that never change, which no wait holds back.
__device__ __forceinline__ Words weights_at(const T* from)
{
    Words found;
    if constexpr (sizeof(Words) == 16) {
        *(float4*)found.at = CONSTANT ? __ldg((const float4*)from) : *(const float4*)from;
    } else {
        found.at[0] = from[0];
    }
    return found;
}

// The kernel in front may still write these when this one begins, so no load may pass the wait.
__device__ __forceinline__ Words values_at(const T* from)
{
    Words found;
    if constexpr (sizeof(Words) == 16) {
        *(float4*)found.at = *(const float4*)from;
    } else {
        found.at[0] = from[0];
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
gemv(const T* w, const T* x, T* y, const T* bias, const T* z0, const T* z1, int n, int k)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % PARTS;
    const int column = blockIdx.x * (WARPS / PARTS) + warp / PARTS;
    float sums[M] = {};
    grid_dependency_sync();
    if (column < n) {
        const T* row = w + (long long)column * k;
        constexpr int STEP = 32 * PARTS * VECTOR;
#pragma unroll 8
        for (int at = (part * 32 + lane) * VECTOR; at < k; at += STEP) {
            const Words weights = weights_at(row + at);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                const Words values = values_at(x + (long long)m * k + at);
#pragma unroll
                for (int q = 0; q < VECTOR; ++q) sums[m] += float(weights.at[q]) * float(values.at[q]);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int other = 16; other; other /= 2)
            sums[m] += __shfl_xor_sync(~0u, sums[m], other);

    __shared__ float parts[WARPS][M];
    if (lane == 0)
        for (int m = 0; m < M; ++m) parts[warp][m] = sums[m];
    __syncthreads();
    if (part == 0 && lane < M && column < n) {
        float sum = 0;
        for (int i = 0; i < PARTS; ++i) sum += parts[warp + i][lane];
        const long long at = (long long)lane * n + column;
        y[at] = epilogue(sum + (BIAS ? float(bias[column]) : 0.f), at, lane, column, z0, z1);
    }
}
