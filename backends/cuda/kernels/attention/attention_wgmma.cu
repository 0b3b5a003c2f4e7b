// softmax(softcap(scale * q @ k') + mask) @ v of heads of 64 elements of 16 bits, on Hopper. Like attention_mma.cu, but
// TMA loads all operands, and warpgroups multiply directly from shared memory, except for the softmax weights, which
// stay in registers.
//
// A block is one warpgroup and processes 64 rows of queries of one head; several blocks share a multiprocessor, so that
// one computes a softmax while another multiplies. Keys are loaded in tiles of KEYS, often all at once.
//
// Compile-time, besides the constants of online_softmax.cuh: KEYS; STAGES, tiles of keys and values in shared memory;
// RESIDENT, blocks per multiprocessor; and two wgmma instructions.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

#include "attention/online_softmax.cuh"
#include "attention/mask_tiles.cuh"

// Whether threads stage what the mask adds to keys, the same for all rows, in shared memory.
constexpr bool BIASES = MASK != NO_MASK && !MASK_ROWS && !MASK_TILES;

constexpr int THREADS = 128, ROWS = 64, SIZE = 64;
constexpr int BYTES_Q = ROWS * SIZE * 2, BYTES_K = KEYS * SIZE * 2;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap y,
                const __grid_constant__ TensorMap mask_tiles, const M* mask, Sizes s, MaskSteps of_mask, float scale,
                float softcap, int tiles)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 queries = shared_address(shared), keys = queries + BYTES_Q;
    const u32 values = keys + STAGES * BYTES_K, masks = values + STAGES * BYTES_K;
    const u32 full_k = masks + STAGES * BYTES_MASK, full_v = full_k + STAGES * 8;
    float* const biases = (float*)(shared + BYTES_Q + STAGES * (2 * BYTES_K + BYTES_MASK + 16));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = blockIdx.x / tiles, m0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int head = pair % s.heads, n = pair / s.heads, kv_head = head / (s.heads / s.kv_heads);
    const Keys range = keys_of(m0, min(m0 + ROWS, s.rows) - 1, s.total, s);
    const int begin = range.begin / KEYS * KEYS;
    const int count = max(0, (range.end - begin + KEYS - 1) / KEYS);

    const auto load_tile = [&](int step) {
        const u32 stage = step % STAGES, of_k = full_k + stage * 8, of_v = full_v + stage * 8;
        mbarrier_expect_tx(of_k, (step == 0 ? BYTES_Q : 0) + BYTES_K + BYTES_MASK);
        if (step == 0) tma_load_4d(queries, &q, of_k, 0, m0, head, n);
        tma_load_4d(keys + stage * BYTES_K, &k, of_k, 0, begin + step * KEYS, kv_head, n);
        load_mask_tile(masks + stage * BYTES_MASK, &mask_tiles, of_k, begin + step * KEYS, m0, head, n, of_mask);
        mbarrier_expect_tx(of_v, BYTES_K);
        tma_load_4d(values + stage * BYTES_K, &v, of_v, 0, begin + step * KEYS, kv_head, n);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; ++i) mbarrier_init(full_k + i * 8, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    grid_dependency_sync();
    if (threadIdx.x == 0)
        for (int step = 0; step < min(STAGES, count); ++step) load_tile(step);

    const int row = m0 + warp * 16 + lane / 4;
    const M* mask_row[2] = {mask, mask};
    if (MASK != NO_MASK)
        for (int half = 0; half < 2; ++half)
            mask_row[half] += n * of_mask.batch + head * of_mask.head
                            + min(row + half * 8, s.rows - 1) * of_mask.row;
    float results[SIZE / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int step = 0; step < count; ++step) {
        const int stage = step % STAGES, phase = step / STAGES & 1, t0 = begin + step * KEYS;
        if constexpr (BIASES) {
            if (step) __syncthreads();
            for (int i = threadIdx.x; i < KEYS; i += THREADS)
                biases[i] = added<float>(mask_row[0], t0 + i, s, of_mask);
            __syncthreads();
        }
        float scores[KEYS / 8][4] = {};
        mbarrier_wait(full_k + stage * 8, phase);
        settle(scores);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < SIZE / 16; ++i)
            wgmma(scores, smem_descriptor(queries) + i * 2, smem_descriptor(keys + stage * BYTES_K) + i * 2);
        wgmma_commit();
        wgmma_wait<0>();
        settle(scores);

        // A warp past the last row has no scores to process.
        const int weighed = m0 + warp * 16 < s.rows ? KEYS / 8 : 0;
        const Seen seen = {{row, row + 8}, t0, MASK_TILES ? min(s.total, s.mask_length) : s.total, weighed};
        const MaskInPlace in_place = {{mask_row[0], mask_row[1]}, t0, s, of_mask};
        const auto staged = [&](int eight, int side, int) { return biases[eight * 8 + lane % 4 * 2 + side]; };
        const MaskOfWarp of_warp(shared + (masks - queries) + stage * BYTES_MASK, warp * 16);
        if constexpr (BIASES) weigh(scores, results, peak, sum, staged, seen, s, scale, softcap);
        else if constexpr (MASK_TILES) weigh(scores, results, peak, sum, of_warp, seen, s, scale, softcap);
        else weigh(scores, results, peak, sum, in_place, seen, s, scale, softcap);
        u32 weights[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i)
            as_operand(weights[i], scores[2 * i], scores[2 * i + 1]);

        mbarrier_wait(full_v + stage * 8, phase);
        settle(results);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i)
            wgmma_across(results, weights[i],
                         smem_descriptor(values + stage * BYTES_K) + i * (16 * SIZE * 2 >> 4));
        wgmma_commit();
        wgmma_wait<0>();
        settle(results);
        if (step + STAGES < count) {
            __syncthreads();
            if (threadIdx.x == 0) load_tile(step + STAGES);
        }
    }

    __syncthreads();  // results take the place of the queries
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = over_quad_sum(sum[half]);
        const float by = total == 0 ? 0.0f : 1 / total;
#pragma unroll
        for (int j = 0; j < SIZE / 8; ++j)
            *(u32*)(shared + swizzled(warp * 16 + lane / 4 + half * 8, j) + lane % 4 * 4) =
                pair_of(results[j][half * 2] * by, results[j][half * 2 + 1] * by);
    }
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_store_4d(&y, queries, 0, m0, head, n);
        tma_store_wait();
    }
}
