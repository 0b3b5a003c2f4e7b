// The experts that rows choose: of every row the TOP greatest of EXPERTS logits, the first of equal ones, and a weight
// for each. Pairs of rows and experts are sorted by expert, those of an expert in the order of rows; see experts.cuh.
//
// One warp per row, then one per expert. Compile-time: X, the type of logits; EXPERTS; TOP; HOW the weights are made;
// ALONE, whether one block does both.

constexpr int OF_CHOSEN = 0, OF_ALL = 1, GIVEN = 2, GIVEN_SHARES = 3, SPARSE = 4;
constexpr int EACH = (EXPERTS + 31) / 32;
constexpr float MARGIN = 2 * 0.01f;  // of logits that are close enough, of Phi-3.5 MoE

#include "ptx/pdl.cuh"

__device__ __forceinline__ float over_warp(float sum)
{
#pragma unroll
    for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
}

// A number that orders logits as they are, greater ones first, and equal ones by expert; 0 for none.
__device__ __forceinline__ unsigned long long rank_of(float logit, int expert)
{
    const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 is 0
    const unsigned ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (unsigned long long)ordered << 32 | (0xffffffffu - expert);
}

__device__ __forceinline__ void choose_experts(const X* router, const X* given, int* chosen, float* weights, int row)
{
    const int lane = threadIdx.x % 32;
    float logits[EACH];
    bool is_left[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        is_left[i] = i * 32 + lane < EXPERTS;
        logits[i] = is_left[i] ? float(router[(long long)row * EXPERTS + i * 32 + lane]) : 0.0f;
    }
    float greatest = 0, total = 0;
    for (int slot = 0; slot < TOP; ++slot) {
        unsigned long long best = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (is_left[i]) best = max(best, rank_of(logits[i], i * 32 + lane));
#pragma unroll
        for (int other = 16; other; other /= 2) best = max(best, __shfl_xor_sync(~0u, best, other));
        const int expert = (int)(0xffffffffu - (unsigned)best);
        float own = 0;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (i == expert / 32) own = logits[i];
        const float logit = __shfl_sync(~0u, own, expert % 32);
        if (slot == 0) {
            greatest = logit;
            if constexpr (HOW == OF_ALL) {
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    if (is_left[i]) total += expf(logits[i] - greatest);
                total = over_warp(total);
            }
        }
        float weight = 0;
        if constexpr (HOW == GIVEN || HOW == GIVEN_SHARES) {
            weight = float(given[(long long)row * EXPERTS + expert]);
        } else if constexpr (HOW == SPARSE) {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                if (is_left[i] && logit - logits[i] <= MARGIN * fmaxf(fabsf(logits[i]), logit))
                    weight += expf(logits[i] - logit);
            weight = 1 / over_warp(weight);
        } else {
            weight = expf(logit - greatest);
        }
        if constexpr (HOW == OF_CHOSEN || HOW == GIVEN_SHARES) total += weight;
#pragma unroll
        for (int i = 0; i < EACH; ++i)
            if (i * 32 + lane == expert) is_left[i] = false;
        if (lane == 0) {
            chosen[(long long)row * TOP + slot] = expert;
            weights[(long long)row * TOP + slot] = weight;
        }
    }
    if constexpr (HOW != GIVEN && HOW != SPARSE) {
        __syncwarp();
        for (int slot = lane; slot < TOP; slot += 32) weights[(long long)row * TOP + slot] /= total;
    }
}

__device__ __forceinline__ void sort_pairs(const int* chosen, int* order, int* ends, int pairs, int expert)
{
    const int lane = threadIdx.x % 32;
    int before = 0, own = 0;
    for (int base = 0; base < pairs; base += 32) {
        const int found = base + lane < pairs ? chosen[base + lane] : EXPERTS;
        before += __popc(__ballot_sync(~0u, found < expert));
        own += __popc(__ballot_sync(~0u, found == expert));
    }
    if (lane == 0) ends[expert] = before + own;
    if (own == 0) return;
    for (int base = 0; base < pairs; base += 32) {
        const bool is_own = base + lane < pairs && chosen[base + lane] == expert;
        const unsigned mask = __ballot_sync(~0u, is_own);
        if (is_own) order[before + __popc(mask & ((1u << lane) - 1))] = base + lane;
        before += __popc(mask);
    }
}

extern "C" __global__ void __launch_bounds__(1024)
route_experts(const X* router, const X* given, int* chosen, float* weights, int* order, int* ends, int rows)
{
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    grid_dependency_launch();
    grid_dependency_sync();
    for (int row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps)
        choose_experts(router, given, chosen, weights, row);
    if constexpr (ALONE) {
        __syncthreads();
        for (int expert = warp; expert < EXPERTS; expert += warps)
            sort_pairs(chosen, order, ends, rows * TOP, expert);
    }
}

extern "C" __global__ void __launch_bounds__(128)
sort_chosen(const int* chosen, int* order, int* ends, int pairs)
{
    const int expert = blockIdx.x * 4 + threadIdx.x / 32;
    grid_dependency_launch();
    grid_dependency_sync();
    if (expert < EXPERTS) sort_pairs(chosen, order, ends, pairs, expert);
}
