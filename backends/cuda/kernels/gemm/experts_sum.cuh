// The experts of a single row, whose results a block adds up; for kernels that include experts.cuh.

// The warps of a block divide the TOP experts of the row, and PARTS of them the terms of each.
constexpr int PARTS = WARPS > TOP ? WARPS / TOP : 1;

// The experts of the row, and their weights, which add up their results.
struct Experts {
    int numbers[TOP];
    float weights[TOP];
};

// Chooses with every warp, so that none waits for another before it reads weights. Returns the expert of the warp's first
// slot; all of them are in `found` after a barrier.
__device__ __forceinline__ int choose(Experts& found, const L* router, const G* given)
{
    int own = 0;
    const float total = choose_experts(router, given, 0, [&](int slot, int expert, float weight) {
        if (slot == threadIdx.x / 32 / PARTS) own = expert;
        if (threadIdx.x == 0) {
            found.numbers[slot] = expert;
            found.weights[slot] = weight;
        }
    });
    __syncwarp();
    for (int slot = threadIdx.x; slot < TOP && threadIdx.x < 32; slot += 32) found.weights[slot] /= total;
    return own;
}

static_assert(PRODUCTS == 1 && M == 1, "one product of one row");

// Adds up the partial results of all warps, which are weighted, and the weighted biases, and applies the epilogue.
__device__ __forceinline__ void finish_sum(const float (&parts)[WARPS][COLUMNS][SUMS], R* y, const Y* bias,
                                           const Experts& experts, const Y* z0, const Y* z1, int n0, int n)
{
    __syncthreads();
    for (int i = threadIdx.x; i < RESULTS; i += THREADS) {
        const int column = n0 + i;
        if (column >= n) continue;
        float sums[PRODUCTS] = {};
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
#pragma unroll
            for (int plane = 0; plane < PLANES; ++plane) sums[0] += parts[warp][plane][i];
        if constexpr (BIAS) {
#pragma unroll
            for (int slot = 0; slot < TOP; ++slot)
                sums[0] += experts.weights[slot] * float(bias[(long long)experts.numbers[slot] * n + column]);
        }
        y[column] = result_of(sums, column, 0, column, z0, z1);
    }
}
