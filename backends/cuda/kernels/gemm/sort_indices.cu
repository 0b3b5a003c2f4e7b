// Pairs sorted by expert, as given by indices: of pair i, indices[i], from the end if it is negative.
//
// One warp per expert. Compile-time: I, the type of indices; EXPERTS.

#include "ptx/pdl.cuh"
#include "gemm/sort_pairs.cuh"

extern "C" __global__ void __launch_bounds__(128)
sort_indices(const I* indices, int* order, int* ends, int pairs)
{
    const int expert = blockIdx.x * 4 + threadIdx.x / 32;
    grid_dependency_launch();
    grid_dependency_sync();
    const auto chosen = [&](int pair) {
        const int index = int(indices[pair]);
        return index < 0 ? index + EXPERTS : index;
    };
    if (expert < EXPERTS) sort_pairs(chosen, order, ends, pairs, expert);
}
