// Quantization to integers (or short floats) by a scale and a zero point, and dequantization. One thread per result.
//
// X, S and Y are the types of elements, scale and result, Z that of the zero point; Q is the type that
// quotients are rounded to, P that of differences and sums, A that of the arithmetic. Generated:
// narrow(x, zero), the number of type Y nearest to x + zero within its range.

#include "ptx/pdl.cuh"

struct Spread {  // which parameter belongs to element (o, a, i) of [outer][size][inner]
    long long inner, size, block, of_outer, of_block, of_inner;
    __device__ __forceinline__ long long operator()(long long element) const
    {
        if (!of_outer && !of_block && !of_inner) return 0;
        const long long row = element / inner, outer = row / size;
        return outer * of_outer + (row - outer * size) / block * of_block
               + (element - row * inner) * of_inner;
    }
};

extern "C" __global__ void __launch_bounds__(256)
quantize(const X* x, const S* scale, const Z* zero, Y* y, long long count, Spread spread)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    grid_dependency_sync();
    const long long own = spread(i);
    const A ratio = A(Q(A(x[i]) / A(scale[own])));
    y[i] = narrow(ratio, zero ? A(zero[own]) : A(0));
}

extern "C" __global__ void __launch_bounds__(256)
dequantize(const X* x, const S* scale, const Z* zero, Y* y, long long count, Spread spread)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    grid_dependency_sync();
    const long long own = spread(i);
    const P value = zero ? P(x[i]) - P(zero[own]) : P(x[i]);
    y[i] = Y(A(value) * A(scale[own]));
}

// y = narrow((sum + bias) * a_scale * b_scale / y_scale), given the sums of a product of integers.
extern "C" __global__ void __launch_bounds__(256)
requantize(const X* x, const int* bias, const S* a_scale, const S* b_scale, const S* y_scale,
           const Z* zero, Y* y, long long count, Spread of_bias, Spread of_a, Spread of_b,
           Spread of_y)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    grid_dependency_sync();
    const P sum = bias ? P(P(x[i]) + P(bias[of_bias(i)])) : P(x[i]);
    const A factor = A(a_scale[of_a(i)]) * A(b_scale[of_b(i)]) / A(y_scale[of_y(i)]);
    y[i] = narrow(A(sum) * factor, A(zero[of_y(i)]));
}
