// The experts that rows choose, and their weights; see route.cuh. Pairs of rows and experts are sorted by expert, those of
// an expert in the order of rows; see experts.cuh.
//
// One warp per row, then one per expert. Compile-time, besides the constants of route.cuh: ALONE, whether one block does
// both.

#include "ptx/pdl.cuh"
#include "gemm/route.cuh"
#include "gemm/sort_pairs.cuh"

extern "C" __global__ void __launch_bounds__(1024)
route_experts(const L* router, const G* given, int* chosen, float* weights, int* order, int* ends, int rows)
{
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_dependency_launch();
    grid_dependency_sync();
    for (long long row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const float total = choose_experts(router, given, row, [&](int slot, int expert, float weight) {
            if (lane != 0) return;
            chosen[row * TOP + slot] = expert;
            weights[row * TOP + slot] = weight;
        });
        __syncwarp();
        for (int slot = lane; slot < TOP; slot += 32) weights[row * TOP + slot] /= total;
    }
    if constexpr (ALONE) {
        __syncthreads();
        for (int expert = warp; expert < EXPERTS; expert += warps)
            sort_pairs([&](int pair) { return chosen[pair]; }, order, ends, rows * TOP, expert);
    }
}

extern "C" __global__ void __launch_bounds__(128)
sort_chosen(const int* chosen, int* order, int* ends, int pairs)
{
    const int expert = blockIdx.x * 4 + threadIdx.x / 32;
    grid_dependency_launch();
    grid_dependency_sync();
    if (expert < EXPERTS) sort_pairs([&](int pair) { return chosen[pair]; }, order, ends, pairs, expert);
}
