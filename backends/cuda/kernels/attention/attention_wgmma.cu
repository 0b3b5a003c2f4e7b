// softmax(softcap(scale * q @ k') + mask) @ v of heads of 64 elements of 16 bits, on Hopper. Like attention_mma.cu, but
// TMA loads all operands, and warpgroups multiply directly from shared memory, except for the softmax weights, which
// stay in registers.
//
// A block processes 64 rows of queries of one head; several blocks share a multiprocessor, so that one computes a softmax
// while another multiplies. Keys are loaded in tiles of KEYS, often all at once. Where shared memory has room for all of
// them, a block may go on to further rows of its head, in up to ROUNDS rounds; it loads the queries of a round during the
// one before.
//
// Where blocks are few, each of GROUPS warpgroups has a tile of keys, and the first one joins their results. A group computes
// weights in turn, those of sixteen keys at a time, while values are multiplied by those in front of them.
//
// Compile-time, besides the constants of online_softmax.cuh: KEYS; STAGES, tiles of keys and values in shared memory;
// GROUPS; ROUNDS; RESIDENT, blocks per multiprocessor; and two wgmma instructions.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

#include "attention/online_softmax.cuh"
#include "attention/mask_tiles.cuh"
#include "attention/mask_terms.cuh"
#include "attention/joined_groups.cuh"

// Whether threads stage what the mask adds to keys, the same for all rows, in shared memory.
constexpr bool BIASES = MASK != NO_MASK && !MASK_ROWS && !MASK_TILES;

constexpr int ROWS = 64, SIZE = 64;
constexpr int BYTES_Q = ROWS * SIZE * 2, BYTES_K = KEYS * SIZE * 2;
constexpr bool AGAIN = ROUNDS > 1;
constexpr int PLACES = AGAIN ? 2 : 1;  // of queries, with a barrier of their own only if there are further ones
constexpr bool IN_TURN = GROUPS > 1;             // whether values are multiplied while weights are computed
constexpr int AT_ONCE = IN_TURN ? 4 : KEYS / 16;  // sixteens of keys by whose weights they are multiplied together
static_assert(GROUPS == 1 || (!AGAIN && !MASK_TILES && STAGES == GROUPS), "each group has a tile of keys");

extern "C" __global__ void __launch_bounds__(GROUPS * 128, RESIDENT)
attention_wgmma(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap y,
                const __grid_constant__ TensorMap mask_tiles, const M* mask, const M* second_mask, Sizes s, MaskSteps of_mask, float scale,
                float softcap, int tiles)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 queries = shared_address(shared), keys = queries + PLACES * BYTES_Q;
    const u32 values = keys + STAGES * BYTES_K, masks = values + STAGES * BYTES_K;
    const u32 full_k = masks + STAGES * BYTES_MASK, full_v = full_k + STAGES * 8, full_q = full_v + STAGES * 8;
    const u32 end = full_q + (AGAIN ? PLACES * 8 : 0);
    const int group = GROUPS > 1 ? __reduce_max_sync(~0u, threadIdx.x / 128) : 0;
    float* const biases = (float*)(shared + (end - queries)) + group * KEYS;
    M* const terms = (M*)biases;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    // Of the rows of a head, those that see most keys come first.
    const int blocks = (tiles + ROUNDS - 1) / ROUNDS, last = tiles - 1 - blockIdx.x % blocks;
    const int pair = blockIdx.x / blocks;
    int n = pair / s.heads, head = pair % s.heads, kv_head = head / (s.heads / s.kv_heads);
    const auto keys_at = [&](int m0) { return keys_of(m0, min(m0 + ROWS, s.rows) - 1, s.total, s); };
    int begin = keys_at(last * ROWS).begin / KEYS * KEYS;
    const auto steps_at = [&](int m0) { return max(0, (keys_at(m0).end - begin + KEYS - 1) / KEYS); };

    const auto load_queries = [&](int round) {
        const int m0 = (last - round * blocks) * ROWS;
        if (m0 < 0) return;
        const u32 place = round % PLACES, full = full_q + place * 8;
        mbarrier_expect_tx(full, BYTES_Q);
        tma_load_4d(queries + place * BYTES_Q, &q, full, 0, m0, head, n);
    };
    const auto load_keys = [&](int step) {
        const bool with_queries = !AGAIN && step == 0;
        const u32 stage = step % STAGES, of_k = full_k + stage * 8, of_v = full_v + stage * 8;
        const int t0 = begin + step * KEYS, m0 = last * ROWS;
        mbarrier_expect_tx(of_k, (with_queries ? BYTES_Q : 0) + BYTES_K + BYTES_MASK);
        if (with_queries) tma_load_4d(queries, &q, of_k, 0, m0, head, n);
        tma_load_4d(keys + stage * BYTES_K, &k, of_k, 0, t0, kv_head, n);
        load_mask_tile(masks + stage * BYTES_MASK, &mask_tiles, of_k, t0, m0, head, n, of_mask);
        mbarrier_expect_tx(of_v, BYTES_K);
        tma_load_4d(values + stage * BYTES_K, &v, of_v, 0, t0, kv_head, n);
    };
    int loaded = steps_at(last * ROWS);
    pin(begin), pin(loaded), pin(n), pin(head), pin(kv_head);  // else divisions follow the wait
    if (threadIdx.x == 0) {
        for (u32 barrier = full_k; barrier < end; barrier += 8) mbarrier_init(barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
    grid_dependency_sync();
    if (threadIdx.x % 128 == 0) {
        if constexpr (AGAIN) load_queries(0);
        if constexpr (GROUPS > 1) {
            if (group < loaded) load_keys(group);
        } else {
#pragma unroll
            for (int step = 0; step < STAGES; ++step)
                if (step < loaded) load_keys(step);
        }
        if constexpr (AGAIN) load_queries(1);
    }

    for (int round = 0; round < ROUNDS; ++round) {
        const int m0 = (last - round * blocks) * ROWS;
        if (AGAIN && m0 < 0) break;
        const u32 place = round % PLACES * BYTES_Q;
        const int count = steps_at(m0);
        const int row = m0 + warp * 16 + lane / 4;
        MaskRow mask_row[2];
        for (int half = 0; half < 2; ++half)
            mask_row[half] = row_of_mask(mask, n, head, min(row + half * 8, s.rows - 1), of_mask);
        if constexpr (STAGED) {
            stage_terms(terms, mask, n, head, m0, s, of_mask);
            __syncthreads();
        }
        float results[SIZE / 8][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        if constexpr (AGAIN) mbarrier_wait(full_q + round % PLACES * 8, round / PLACES & 1);
        for (int step = group; step < count; step += GROUPS) {
            const int stage = step % STAGES, phase = step / STAGES & 1, t0 = begin + step * KEYS;
            if (BIASES && (STAGES > 1 || round == 0)) {
                if (step > group || round) named_barrier_sync<128>(1 + group);
                for (int i = threadIdx.x % 128; i < KEYS; i += 128)
                    biases[i] = added<float>(mask_row[0], t0 + i, s, of_mask);
                named_barrier_sync<128>(1 + group);
            }
            float scores[KEYS / 8][4];
            if constexpr (GROUPS > 1) mbarrier_wait(full_k, 0);  // queries come with the first keys
            mbarrier_wait(full_k + stage * 8, phase);
            settle(scores);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < SIZE / 16; ++i)
                wgmma(scores, smem_descriptor(queries + place) + i * 2, smem_descriptor(keys + stage * BYTES_K) + i * 2,
                      i > 0);
            wgmma_commit();
            if (AGAIN && round > 0 && step == 0 && threadIdx.x == 0) {
                bulk_store_wait<0>();  // the last round's results have left the place of the next one's queries
                load_queries(round + 1);
            }
            wgmma_wait<0>();
            settle(scores);

            // A warp past the last row has no scores to process, unless that would keep others from going on.
            const int weighted = IN_TURN || m0 + warp * 16 < s.rows ? KEYS / 8 : 0;
            const Seen seen = {{row, row + 8}, t0, MASK_TILES ? min(s.total, s.mask_length) : s.total, weighted};
            const MaskInPlace in_place = {{mask_row[0], mask_row[1]}, t0, s, of_mask};
            const MaskOfTerms of_terms(terms, warp * 16 + lane / 4, t0);
            const auto staged = [&](int eight, int side, int) { return biases[eight * 8 + lane % 4 * 2 + side]; };
            const MaskOfWarp of_warp(shared + (masks - queries) + stage * BYTES_MASK, warp * 16);
            u32 weights[KEYS / 16][4];
            // Multiplies values by the weights of the i-th sixteen keys and those in front of them, AT_ONCE of these together.
            const auto multiply = [&](int i) {
                as_operand(weights[i], scores[2 * i], scores[2 * i + 1]);
                if (i % AT_ONCE < AT_ONCE - 1 && i < KEYS / 16 - 1) return;
                wgmma_fence();
#pragma unroll
                for (int j = i / AT_ONCE * AT_ONCE; j <= i; ++j)
                    wgmma_across(results, weights[j],
                                 smem_descriptor(values + stage * BYTES_K) + j * (16 * SIZE * 2 >> 4));
                wgmma_commit();
            };
            if constexpr (IN_TURN) {
                mbarrier_wait(full_v + stage * 8, phase);
                if constexpr (BIASES) weigh_in_turn(scores, results, peak, sum, staged, seen, s, scale, softcap, multiply);
                else weigh_in_turn(scores, results, peak, sum, in_place, seen, s, scale, softcap, multiply);
            } else {
                if constexpr (BIASES) weigh(scores, results, peak, sum, staged, seen, s, scale, softcap);
                else if constexpr (MASK_TILES) weigh(scores, results, peak, sum, of_warp, seen, s, scale, softcap);
                else if constexpr (STAGED) weigh(scores, results, peak, sum, of_terms, seen, s, scale, softcap);
                else weigh(scores, results, peak, sum, in_place, seen, s, scale, softcap);
                mbarrier_wait(full_v + stage * 8, phase);
                settle(results);
#pragma unroll
                for (int i = 0; i < KEYS / 16; ++i) multiply(i);
            }
            wgmma_wait<0>();
            settle(results);
            if constexpr (GROUPS > 1) break;
            if (step + STAGES < count) {
                __syncthreads();
                if (threadIdx.x == 0) load_keys(step + STAGES);
            }
        }

        __syncthreads();  // nothing reads queries, keys and values any more
        if constexpr (GROUPS > 1) {
            join(results, peak, sum, (float4*)(shared + (keys - queries)), group, scale);
            if (group > 0) return;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = over_quad_sum(sum[half]);
            const float by = total == 0 ? 0.0f : 1 / total;
#pragma unroll
            for (int j = 0; j < SIZE / 8; ++j)
                *(u32*)(shared + place + swizzled(warp * 16 + lane / 4 + half * 8, j) + lane % 4 * 4) =
                    pair_of(results[j][half * 2] * by, results[j][half * 2 + 1] * by);
        }
        fence_proxy_async();
        named_barrier_sync<128>(1);
        if (threadIdx.x == 0) {
            tma_store_4d(&y, queries + place, 0, m0, head, n);
            bulk_store_commit();
        }
    }
    if (threadIdx.x == 0) bulk_store_wait<0>();
}
