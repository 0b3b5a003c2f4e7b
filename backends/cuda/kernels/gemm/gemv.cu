// y[m][n] = epilogue(sum over k of x[m][k] * w0[n][k] + bias0[n]) for few rows m, or of two such sums, with w1 and
// bias1 likewise; see gemv_floats.cuh.

#include "gemm/gemv_floats.cuh"
#include "gemm/measured_rows.cuh"
#include "gemm/finish_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
gemv(const T* w0, const T* w1, const T* x, const T* scale, const T* shift, float epsilon, R* y, const T* bias0,
     const T* bias1, const T* z0, const T* z1, const float* measured, float unit, R* rows_left, const R* factors_left,
     float* squares_left, int n)
{
    __shared__ float parts[WARPS][M][SUMS];
    __shared__ Squares squares;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = blockIdx.x * RESULTS;
    const int place = lane % 4 * TERMS;
    const long long first = min(n0 + lane / 4, n - 1);
    Rows rows = {};
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) rows.w[p] = (p ? w1 : w0) + first * PITCH;
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS / PRODUCTS; ++e)
            rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - first;
    }
    int at = warp * (STEPS * STEP);
    grid_dependency_launch();
    Parameters parameters;
    parameters.load(scale, shift);
    Buffer now, next;
    load_weights(now, rows, at + place);
    load_weights(next, rows, at + place + STRIDE);
    parameters.keep(scale, shift);
    const Left left(rows_left, factors_left, squares_left, n0, n);
    grid_dependency_sync();
    const Beside beside = beside_of(threadIdx.x, bias0, bias1, z0, z1, n0, n);
    const AdjacentRows values{rows_of(x, parameters, epsilon)};
    load_values(now, values, at + place);
    load_values(next, values, at + place + STRIDE);
    if constexpr (DIVIDES) Measures(measured).leave(squares);  // requested behind the rows
    Kind<sizeof(T)>::Sums sums = {};
    multiply_all<STRIDE>(sums, now, next, rows, values, at, place);
    leave(parts[warp], sums);
    finish_rows(parts, y, beside, bias0, bias1, z0, z1, n0, n, left, [&](int m) {
        if constexpr (DIVIDES) return unit * inverse_root(squares, m, epsilon);
        else return 1.0f;
    });
}
