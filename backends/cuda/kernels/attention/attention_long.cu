// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on Hopper, for many queries. Like attention_wgmma.cu,
// but each of GROUPS warpgroups processes 64 rows, and all share the keys and values that one producer warp loads. The
// groups are not otherwise synchronized: one computes a softmax while another multiplies.
//
// Heads are stored in slabs of 64 elements, each slab holding all rows, the last one padded with zeros. With LENGTHS, the
// queries are the last of the keys that are there. What lies behind these may be anything: values are cleared, as a
// weight of zero does not hide infinities.
//
// Compile-time, besides the constants of online_softmax.cuh: SIZE_K and SIZE_V, of a head; GROUPS; KEYS of a step;
// STAGES, the steps whose keys and values fit shared memory; and two wgmma instructions.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"

#include "attention/online_softmax.cuh"

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 32, ROWS = GROUPS * 64;
constexpr int SLABS_K = (SIZE_K + 63) / 64, SLABS_V = (SIZE_V + 63) / 64, EIGHTS = SLABS_V * 8;
constexpr int SLAB_Q = ROWS * 128, SLAB = KEYS * 128;  // in bytes
constexpr int BYTES_Q = SLAB_Q * (SLABS_K > SLABS_V ? SLABS_K : SLABS_V);
constexpr int BYTES_K = SLABS_K * SLAB, BYTES_V = SLABS_V * SLAB;

// The producer thread: loads the queries once, then the keys and values of every step.
__device__ __forceinline__ void fetch(const TensorMap* q, const TensorMap* k, const TensorMap* v,
                                      u32 queries, u32 keys, u32 values, u32 full_q,
                                      const Pipeline<STAGES>& of_k, const Pipeline<STAGES>& of_v, int m0,
                                      int head, int kv_head, int n, int begin, int count)
{
    mbarrier_expect_tx(full_q, SLABS_K * SLAB_Q);
    for (int i = 0; i < SLABS_K; ++i) tma_load_4d(queries + i * SLAB_Q, q, full_q, i * 64, m0, head, n);
    PipelineState<STAGES> turn;
    for (int step = 0; step < count; ++step, turn.next()) {
        const int stage = turn.stage, t0 = begin + step * KEYS;
        mbarrier_wait(of_k.empty(stage), turn.parity ^ 1);
        mbarrier_expect_tx(of_k.full(stage), BYTES_K);
        for (int i = 0; i < SLABS_K; ++i)
            tma_load_4d(keys + stage * BYTES_K + i * SLAB, k, of_k.full(stage), i * 64, t0, kv_head, n);
        mbarrier_wait(of_v.empty(stage), turn.parity ^ 1);
        mbarrier_expect_tx(of_v.full(stage), BYTES_V);
        for (int i = 0; i < SLABS_V; ++i)
            tma_load_4d(values + stage * BYTES_V + i * SLAB, v, of_v.full(stage), i * 64, t0, kv_head, n);
    }
}

// Clears the values of a stage from number `from` on. All consumers call it.
__device__ __forceinline__ void clear_values(u32 values, int from)
{
    const int chunks = (KEYS - from) * 8;  // of a slab
    for (int item = threadIdx.x; item < chunks * SLABS_V; item += CONSUMERS)
        fill<16>(values + item / chunks * SLAB + from * 128 + item % chunks * 16, 0);
    fence_proxy_async();
    named_barrier_sync<2, CONSUMERS>();
}

// The sums of one slab of values.
__device__ __forceinline__ float (&slab_of(float (&sums)[EIGHTS][4], int slab))[8][4]
{
    return *(float(*)[8][4])sums[slab * 8];
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_long(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
               const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap y, const M* mask,
               const long long* lengths, Sizes s, MaskSteps of_mask, float scale, float softcap, int tiles)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 queries = shared_address(shared), keys = queries + BYTES_Q;
    const u32 values = keys + STAGES * BYTES_K, full_q = values + STAGES * BYTES_V;
    const Pipeline<STAGES> of_k(full_q + 8), of_v(full_q + 8 + STAGES * 16);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = blockIdx.x / tiles, m0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int head = pair % s.heads, n = pair / s.heads, kv_head = head / (s.heads / s.kv_heads);
    if (threadIdx.x == 0) {
        mbarrier_init(full_q, 1);
        of_k.begin(1, GROUPS * 4);
        of_v.begin(1, GROUPS * 4);
    }
    __syncthreads();
    grid_dependency_sync();
    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = LENGTHS ? valid - s.rows : 0;  // position of the first query
    const Keys range = keys_of(m0 + shift, min(m0 + ROWS, s.rows) - 1 + shift, valid, s);
    const int begin = range.begin / KEYS * KEYS;
    const int count = max(0, (range.end - begin + KEYS - 1) / KEYS);
    if (warp == GROUPS * 4) {
        if (lane == 0)
            fetch(&q, &k, &v, queries, keys, values, full_q, of_k, of_v, m0, head, kv_head, n, begin,
                  count);
        return;
    }

    const int row = m0 + warp * 16 + lane / 4;
    const M* mask_row[2] = {mask, mask};
    if (MASK != NO_MASK)
        for (int half = 0; half < 2; ++half)
            mask_row[half] += n * of_mask.batch + head * of_mask.head
                            + min(row + half * 8, s.rows - 1) * of_mask.row;
    // A warp past the last row has no scores to process.
    const int weighed = m0 + warp * 16 < s.rows ? KEYS / 8 : 0;
    const u32 own = queries + warp / 4 * 64 * 128;
    float results[EIGHTS][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    PipelineState<STAGES> turn;
    mbarrier_wait(full_q, 0);
#pragma unroll 1
    for (int step = 0; step < count; ++step, turn.next()) {
        const int stage = turn.stage;
        float scores[KEYS / 8][4] = {};
        mbarrier_wait(of_k.full(stage), turn.parity);
        settle(scores);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < (SIZE_K + 15) / 16; ++i)
            wgmma(scores, smem_descriptor(own + i / 4 * SLAB_Q) + i % 4 * 2,
                  smem_descriptor(keys + stage * BYTES_K + i / 4 * SLAB) + i % 4 * 2);
        wgmma_commit();
        wgmma_wait<0>();
        settle(scores);
        if (lane == 0) mbarrier_arrive(of_k.empty(stage));

        const int t0 = begin + step * KEYS;
        const Seen seen = {{row + shift, row + 8 + shift}, t0, valid, weighed};
        weigh(scores, results, peak, sum, MaskInPlace{{mask_row[0], mask_row[1]}, t0, s, of_mask}, seen, s, scale,
              softcap);
        u32 weights[KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i)
            as_operand(weights[i], scores[2 * i], scores[2 * i + 1]);

        mbarrier_wait(of_v.full(stage), turn.parity);
        if (LENGTHS && t0 + KEYS > valid)
            clear_values(values + stage * BYTES_V, valid - t0);
        settle(results);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i)
#pragma unroll
            for (int slab = 0; slab < SLABS_V; ++slab)
                wgmma_across(slab_of(results, slab), weights[i],
                             smem_descriptor(values + stage * BYTES_V + slab * SLAB) + i * (16 * 128 >> 4));
        wgmma_commit();
        wgmma_wait<0>();
        settle(results);
        if (lane == 0) mbarrier_arrive(of_v.empty(stage));
    }

    named_barrier_sync<1, CONSUMERS>();  // results take the place of the queries
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = over_quad_sum(sum[half]);
        const float by = total == 0 ? 0.0f : 1 / total;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j)
            *(u32*)(shared + j / 8 * SLAB_Q + swizzled(warp * 16 + lane / 4 + half * 8, j % 8)
                    + lane % 4 * 4) = pair_of(results[j][half * 2] * by, results[j][half * 2 + 1] * by);
    }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) {
        for (int slab = 0; slab < SLABS_V; ++slab)
            tma_store_4d(&y, queries + slab * SLAB_Q + warp * 16 * 128, slab * 64, m0 + warp * 16, head,
                          n);
        tma_store_wait();
    }
}
