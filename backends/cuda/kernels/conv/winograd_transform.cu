// The transforms of a Winograd convolution in three kernels: inputs [point][tile][channel] before a batch of
// matrix products, one for every point, and sums [point][tile][filter] after it.
//
// Compile-time: OUT; BIAS; POOL.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "conv/winograd.cuh"

extern "C" __global__ void winograd_inputs(const float* x, float* v, long long count, Plane p)
{
    const long long i = in_order(blockIdx.x, gridDim.x) * (long long)blockDim.x + threadIdx.x;
    grid_dependency_sync();
    if (i >= count) return;
    float d[EDGE][EDGE];
    read_tile(x, Tile((int)(i / p.channels), p), (int)(i % p.channels), p, d);
    transform_inputs(d);
#pragma unroll
    for (int a = 0; a < POINTS; ++a) v[a * count + i] = d[a / EDGE][a % EDGE];
}

extern "C" __global__ void winograd_results(const float* sums, float* y, const float* bias,
                                            const float* z0, const float* z1, long long count,
                                            Plane p)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    grid_dependency_sync();
    if (i >= count) return;
    float m[EDGE][EDGE];
#pragma unroll
    for (int a = 0; a < POINTS; ++a) m[a / EDGE][a % EDGE] = sums[a * count + i];
    write_tile(m, y, Tile((int)(i / p.filters), p), (int)(i % p.filters), bias, z0, z1, p);
}
