// Pairs sorted by expert, as given by indices: of pair i, indices[i], from the end if it is negative. A pair whose index is
// out of range has no expert, and its row of y [pairs, n] is zero, as what Gather gives would be.
//
// One warp per expert, and one for pairs without. Compile-time: I, the type of indices; T, that of y; EXPERTS.

#include "ptx/pdl.cuh"
#include "gemm/sort_pairs.cuh"

extern "C" __global__ void __launch_bounds__(128)
sort_indices(const I* indices, int* order, int* ends, T* y, int pairs, int n)
{
    const int expert = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_dependency_launch();
    grid_dependency_sync();
    const auto chosen = [&](int pair) {
        const I index = indices[pair] < 0 ? indices[pair] + EXPERTS : indices[pair];
        return index < 0 || index >= EXPERTS ? EXPERTS : int(index);
    };
    if (expert < EXPERTS) sort_pairs(chosen, order, ends, pairs, expert);
    if (expert != EXPERTS) return;
    for (int base = 0; base < pairs; base += 32) {
        const bool has_none = base + lane < pairs && chosen(base + lane) == EXPERTS;
        for (unsigned mask = __ballot_sync(~0u, has_none); mask; mask &= mask - 1) {
            T* const row = y + (long long)(base + __ffs(mask) - 1) * n;
            for (int i = lane; i < n; i += 32) row[i] = T(0);
        }
    }
}
