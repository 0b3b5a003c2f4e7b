// exp(x - max) / sum(exp(x - max)) over the middle axis of [outer][count][inner]; LOGARITHM gives
// x - max - log(sum) instead. The maximum is subtracted, so nothing overflows.

constexpr int THREADS = 32 * WARPS;

__device__ __forceinline__ T larger(T a, T b) { return a > b || a != a ? a : b; }  // NaN stays

// Reduces over a block; every thread gets the result.
template <typename Combine>
__device__ __forceinline__ T over_block(T value, Combine combine)
{
    __shared__ T parts[WARPS];
#pragma unroll
    for (int other = 16; other; other /= 2)
        value = combine(value, __shfl_xor_sync(~0u, value, other));
    if constexpr (WARPS > 1) {
        __syncthreads();  // `parts` may still be read from the reduction before
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
        __syncthreads();
        value = parts[0];
        for (int i = 1; i < WARPS; ++i) value = combine(value, parts[i]);
    }
    return value;
}

__device__ __forceinline__ T result(T x, T peak, T sum)
{
    return LOGARITHM ? x - peak - log(sum) : exp(x - peak) / sum;
}

// inner = 1: one block, of WARPS warps, a row.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_rows(const T* x, T* y, int count)
{
    x += (long long)blockIdx.x * count;
    y += (long long)blockIdx.x * count;
    T peak = -T(INFINITY);
    for (int i = threadIdx.x; i < count; i += THREADS) peak = larger(peak, x[i]);
    peak = over_block(peak, [](T a, T b) { return larger(a, b); });
    T sum = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) sum += exp(x[i] - peak);
    sum = over_block(sum, [](T a, T b) { return a + b; });
    for (int i = threadIdx.x; i < count; i += THREADS) y[i] = result(x[i], peak, sum);
}

// inner > 1: one thread a column; neighbouring threads read neighbouring elements.
extern "C" __global__ void softmax_columns(const T* x, T* y, long long columns, int count,
                                           int inner)
{
    const long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (column >= columns) return;
    const long long at = column / inner * inner * count + column % inner;
    T peak = -T(INFINITY);
    for (int i = 0; i < count; ++i) peak = larger(peak, x[at + (long long)i * inner]);
    T sum = 0;
    for (int i = 0; i < count; ++i) sum += exp(x[at + (long long)i * inner] - peak);
    for (int i = 0; i < count; ++i) {
        const long long j = at + (long long)i * inner;
        y[j] = result(x[j], peak, sum);
    }
}
