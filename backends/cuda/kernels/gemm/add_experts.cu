// y[row][n] = epilogue(sum over slots of weights[row * TOP + slot] * parts[row * TOP + slot][n]), in the order of slots.
//
// Compile-time: T, the type of the results and of the epilogue's operands; R, what is stored; TOP.

#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
add_experts(const float* parts, const float* weights, R* y, const T* z0, const T* z1, int n, int count)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    grid_dependency_launch();
    grid_dependency_sync();
    if (i >= count) return;
    const int row = i / n, column = i - row * n;
    float sum = 0;
#pragma unroll
    for (int slot = 0; slot < TOP; ++slot) {
        const long long pair = (long long)row * TOP + slot;
        sum += weights[pair] * parts[pair * n + column];
    }
    y[i] = epilogue(sum, i, row, column, z0, z1);
}
