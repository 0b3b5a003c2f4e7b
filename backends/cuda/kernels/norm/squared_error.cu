// The error of results against references: each block adds up the squared differences in its part, and the
// squared references: sums[block][2]. T is the type of the elements, W the one that they are converted to;
// Index is the type of element indices; WARPS is the size of a block.

#include "reduce/block.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
difference(const T* found, const T* expected, double* sums, Index count)
{
    double apart = 0, whole = 0;
    const Index step = gridDim.x * (Index)THREADS;
    for (Index i = blockIdx.x * (Index)THREADS + threadIdx.x; i < count; i += step) {
        const double want = (W)expected[i], error = (double)(W)found[i] - want;
        apart += error * error;
        whole += want * want;
    }
    apart = over_block(apart, Plus());
    whole = over_block(whole, Plus());
    if (threadIdx.x) return;
    sums[2 * blockIdx.x] = apart;
    sums[2 * blockIdx.x + 1] = whole;
}
