// y[m][n] = epilogue(sum over k of x[m][k] * w0[n][k] + bias0[n]) for few rows m and weights of a few bits, or of two such
// sums, with w1, scales1 and bias1 likewise; see gemv_integers.cuh.

#include "gemm/gemv_integers.cuh"
#include "gemm/finish_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
gemv_packed(const unsigned char* w0, const unsigned char* w1, const X* scales0, const X* scales1, const X* x,
            const X* scale, const X* shift, float epsilon, R* y, const X* bias0, const X* bias1, const X* z0, const X* z1, int n)
{
    __shared__ float parts[WARPS][COLUMNS][ROWS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    const long long first = min(n0 + lane / 4, n - 1);
    Rows rows = {};
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) rows.w[p] = (p ? w1 : w0) + first * BYTES + lane % 4 * 16;
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS / PRODUCTS; ++e)
            rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - first;
    }
    int at = warp * (STEPS * STEP);
    grid_dependency_launch();
    Parameters parameters;
    parameters.load(scale, shift);
    copy_scales(scales0, scales1, n0, n);
    Buffer now, next;
    load_weights(now, rows, at);
    load_weights(next, rows, at + STRIDE);
    parameters.keep(scale, shift);
    grid_dependency_sync();
    cp_async_wait<0>();
    const Beside beside = beside_of(threadIdx.x, bias0, bias1, z0, z1, n0, n);
    const AdjacentRows values{rows_of(x, parameters, epsilon)};
    if constexpr (!NORMALIZED) __syncthreads();
    const Masks masks;
    float sums[PAIRS][GROUPS][4] = {};
    multiply_all<STRIDE>(sums, now, next, rows, values, at, masks);
    leave_fragments(parts[warp], sums);
    finish_rows(parts, y, beside, bias0, bias1, z0, z1, n0, n);
}
