// Rotates pairs of elements of every head by the angle of their position; see rotate.cuh. T is the type of the
// elements, A the type of the arithmetic, Index the type of thread indices.

#include "attention/steps.cuh"
#include "attention/rotate.cuh"
#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
rotate(const T* x, const T* cosine, const T* sine, const long long* positions, T* y, Index count,
       int heads, int rows, int half, int chunks, int batches, int places, Steps by, Steps to)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index line = i / chunks, group = line / rows;
    const int chunk = i - line * chunks, row = line - group * rows;
    const Index n = group / heads;
    const int head = group - n * heads;
    const T* from = x + (long long)n * by.batch + head * by.head + row * by.row;
    T* into = y + (long long)n * to.batch + head * to.head + row * to.row;
    grid_dependency_sync();
    const long long own = (long long)(n % batches) * rows + row, place = positions ? positions[own] : own;
    const int pair = chunk * VECTOR;
    rotate_pairs(pairs_at(from, pair, half), into, rotation_at(cosine, sine, place, places, pair, half), pair, half);
}
