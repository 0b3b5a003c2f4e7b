// y[pair][n] = activation(sum over k of x[pair / SHARE][k] * w[expert][n][k] + bias[expert][n]) for the pairs of rows and
// experts of expert_tiles.cuh, with weights of a few bits and enough rows per expert for mixed_input.cuh; or of two such
// sums, with rows n of w[expert][0] and w[expert][1], whose rows take turns in a block, eight at a time.
//
// Types, besides those of mixed_input.cuh: R, of results; L. Compile-time: PRODUCTS; RESIDENT; EDGE, whether blocks extend
// past the last row of weights; BIAS; SHARE, how many pairs read the same row of x.

#include "gemm/mixed_input.cuh"
#include "gemm/add_slices.cuh"
#include "gemm/gather_slices.cuh"
constexpr int M = BM;
#include "gemm/expert_tiles.cuh"

constexpr int RESULTS = BN / PRODUCTS;

// Applies the activation to the sums of a result.
template <typename Sums> __device__ __forceinline__ R result_of(const Sums& sums)
{
    const T* const none = nullptr;
    if constexpr (PRODUCTS == 1) return epilogue(sums[0], 0, 0, 0, none, none);
    else return epilogue(sums[0], sums[1], 0, 0, 0, none, none);
}

// Where a lane reads weights: its first row of each product, and how many rows follow it.
struct Rows {
    const unsigned char* first[PRODUCTS];
    int left;

    __device__ __forceinline__ Rows(const unsigned char* w, int row, int n)
    {
        const int lane = threadIdx.x % 32, at = min(row + lane / 4, n - 1);
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p) {
            first[p] = w + ((long long)p * n + at) * BYTES + lane % 4 * 16;
            hold(first[p]);
        }
        left = n - 1 - at;
    }

    // Copies the words of a lane for a step, those of all lanes of a row of eight side by side.
    __device__ __forceinline__ void copy(u32 to, int step) const
    {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            const int apart = 8 * (e / PRODUCTS);
            const long long row = EDGE ? min(apart, left) : apart;
            cp_async<16 / sizeof(T)>(to + e * 512, (const T*)(first[e % PRODUCTS] + row * BYTES + step * 64), true);
        }
    }
};

// Copies the scales of a block.
__device__ __forceinline__ void copy_factors(unsigned char* to, const T* scales, int n0, int n)
{
    constexpr int PIECES = ROW_FACTORS / COPY;
#pragma unroll 1
    for (int item = threadIdx.x; item < BN * PIECES; item += THREADS) {
        const int row = item / PIECES, byte = item % PIECES * COPY, eight = row / 8;
        const long long from = (eight % PRODUCTS) * (long long)n + min(n0 + eight / PRODUCTS * 8 + row % 8, n - 1);
        cp_async<COPY / sizeof(T)>(shared_address(to + row * FACTORS_BYTES + byte),
                                   (const T*)((const unsigned char*)scales + from * ROW_FACTORS + byte), true);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
experts_mixed(const unsigned char* w, const T* scales, const T* bias, const T* x, R* y, const L* router, const G* given,
              const int* order, const int* ends, int n)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int own_n = warp_n * (EIGHTS * 8), n0 = blockIdx.x * RESULTS;
    grid_dependency_launch();
    grid_dependency_sync();
    const Tile tile = tile_of(router, given, ends, blockIdx.y);
    if (tile.count == 0) return;
    const auto pair_of = [&](int m) { return order[tile.first + min(m, tile.count - 1)]; };
    const long long first_row = (long long)tile.expert * PRODUCTS * n;

    const Rows rows(w + first_row * BYTES, n0 + own_n / PRODUCTS, n);
    const Terms terms(x, [&](int m) { return pair_of(m) / SHARE; });
    unsigned char* const factors = shared + SLICES * STAGES * BYTES_STAGE;
    unsigned char* const stages = shared + slice * (STAGES * BYTES_STAGE);
    const u32 own_stages = shared_address(stages);
    u32 own_words = own_stages + BYTES_A + warp_n * BYTES_W + lane * 16;
    hold(own_words);
    const auto load = [&](int stage, int step) {
        if (step < STEPS) {
            rows.copy(own_words + stage * BYTES_STAGE, step);
            terms.copy(own_stages + stage * BYTES_STAGE, step);
        }
        cp_async_commit();  // also an empty group, so that counting groups counts stages
    };
    copy_factors(factors, (const T*)((const unsigned char*)scales + first_row * ROW_FACTORS), n0, n);
    cp_async_commit();
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) load(stage, slice + stage * SLICES);
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // scales are there

    const Masks masks;
    Sums sums = {};
    const unsigned char* const own_factors = factors + (own_n + lane / 4) * FACTORS_BYTES;
    int stage = 0;
    for (int step = slice; step < STEPS; step += SLICES) {
        cp_async_wait<STAGES - 2>();
        if constexpr (WARPS_N == 1) __syncwarp();
        else named_barrier(1 + slice);
        load(stage == 0 ? STAGES - 1 : stage - 1, step + (STAGES - 1) * SLICES);  // all warps have multiplied it
        const unsigned char* const own = stages + stage * BYTES_STAGE;
        multiply(sums, own, own + BYTES_A + warp_n * BYTES_W, own_factors + factors_at(step), masks);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    cp_async_wait<0>();
    __syncthreads();
    float* const parts = (float*)shared;
    gather(parts, sums, slice, own_n);
    __syncthreads();
    for (int i = threadIdx.x; i < tile.count * RESULTS; i += THREADS) {
        const int m = i / RESULTS, result = i % RESULTS, column = n0 + result;
        if (column >= n) continue;
        float found[PRODUCTS];
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p) {
            found[p] = parts[m * PITCH + (result / 8 * PRODUCTS + p) * 8 + result % 8];
            if constexpr (BIAS) found[p] += float(bias[first_row + (long long)p * n + column]);
        }
        y[(long long)pair_of(m) * n + column] = result_of(found);
    }
}
