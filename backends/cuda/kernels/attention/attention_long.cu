// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on Hopper, for many queries (FlashAttention-3). Like
// attention_wgmma.cu, but each of GROUPS warpgroups processes 64 rows, and all share the keys and values that a producer
// loads; a block goes on to its next rows while the results of the preceding ones are stored.
//
// A group multiplies the queries by the keys of a step, and the weights of the step before by its values, at the same
// time; it computes weights while the latter is under way. Groups start products in turns, so that one computes weights
// while another multiplies.
//
// Heads are stored in slabs of 64 elements, each slab holding all rows, the last one padded with zeros. With LENGTHS, the
// queries are the last of the keys that are there. What lies behind these may be anything: values are cleared, as a
// weight of zero does not hide infinities.
//
// Compile-time, besides the constants of online_softmax.cuh: SIZE_K and SIZE_V, of a head; GROUPS; PLACES, the queries
// of a group in shared memory; KEYS of a step; STAGES, the steps whose keys and values fit shared memory; FEW and MANY,
// registers of a producer and of other threads; and two wgmma instructions, the first of which may begin sums.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"

#include "attention/online_softmax.cuh"
#include "attention/mask_tiles.cuh"
#include "attention/mask_terms.cuh"

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128, ROWS = GROUPS * 64;
constexpr int SLABS_K = (SIZE_K + 63) / 64, SLABS_V = (SIZE_V + 63) / 64, EIGHTS = SLABS_V * 8;
constexpr int SLAB_Q = 64 * 128, SLAB = KEYS * 128;  // in bytes
constexpr int BYTES_Q = SLAB_Q * (SLABS_K > SLABS_V ? SLABS_K : SLABS_V);
constexpr int BYTES_K = SLABS_K * SLAB, BYTES_V = SLABS_V * SLAB;

// ── what a block does ───────────────────────────────────────────────────────────────────────────

// How rows are dealt to blocks: those of a patch of heads, whose keys and values the cache holds, with the most keys
// first, in turns forth and back so that all blocks get about as many keys.
struct Work {
    int tiles, pairs, patch;

    __device__ __forceinline__ int count() const { return tiles * pairs; }
    __device__ __forceinline__ int item(int round) const
    {
        return round * gridDim.x + (round & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    }
};

// The rows of one item, and the keys that these see.
struct Item {
    int m0, head, kv_head, n, valid, shift, begin, steps;  // of keys

    __device__ __forceinline__ Item(const Work& work, int number, const Sizes& s, const long long* lengths)
    {
        const int first = number / (work.tiles * work.patch) * work.patch;
        const int heads = min(work.patch, work.pairs - first), rest = number - first * work.tiles;
        const int pair = first + rest % heads;
        m0 = (work.tiles - 1 - rest / heads) * ROWS;
        head = pair % s.heads;
        n = pair / s.heads;
        kv_head = head / (s.heads / s.kv_heads);
        valid = LENGTHS ? int(lengths[n]) : s.total;
        shift = LENGTHS ? valid - s.rows : 0;  // position of the first query
        const Keys range = keys_of(m0 + shift, min(m0 + ROWS, s.rows) - 1 + shift, valid, s);
        begin = range.begin / KEYS * KEYS;
        steps = max(0, (range.end - begin + KEYS - 1) / KEYS);
    }
};

struct Stages {
    u32 queries, keys, values, masks;
    Pipeline<GROUPS * PLACES> of_q;
    Pipeline<STAGES> of_k, of_v;
    u32 order;

    __device__ __forceinline__ explicit Stages(u32 start)
        : queries(start), keys(queries + GROUPS * PLACES * BYTES_Q), values(keys + STAGES * BYTES_K),
          masks(values + STAGES * BYTES_V), of_q(masks + STAGES * BYTES_MASK), of_k(of_q.empty(GROUPS * PLACES)), of_v(of_k.empty(STAGES)),
          order(of_v.empty(STAGES))
    {
    }
    // Where the terms of the mask of the first group are.
    __device__ __forceinline__ u32 terms() const { return order + GROUPS * 8; }
};

// ── the producer ────────────────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void fetch(const TensorMap* q, const TensorMap* k, const TensorMap* v, const TensorMap* mask,
                                      const Stages& at, const Work& work, const Sizes& s, const MaskSteps& of_mask,
                                      const long long* lengths)
{
    PipelineState<STAGES> pipe;
    PipelineState<PLACES> place;
    const auto fetch_queries = [&](const Item& item) {
        for (int group = 0; group < GROUPS; ++group) {
            const int slot = group * PLACES + place.stage;
            const u32 full = at.of_q.full(slot);
            mbarrier_wait(at.of_q.empty(slot), place.parity ^ 1);
            mbarrier_expect_tx(full, SLABS_K * SLAB_Q);
            for (int i = 0; i < SLABS_K; ++i)
                tma_load_4d(at.queries + slot * BYTES_Q + i * SLAB_Q, q, full, i * 64, item.m0 + group * 64,
                            item.head, item.n);
        }
        place.next();
    };
    for (int round = 0; work.item(round) < work.count(); ++round) {
        const Item item(work, work.item(round), s, lengths);
        if (item.steps == 0) fetch_queries(item);
        for (int step = 0; step < item.steps; ++step, pipe.next()) {
            const int stage = pipe.stage, t0 = item.begin + step * KEYS;
            mbarrier_wait(at.of_k.empty(stage), pipe.parity ^ 1);
            mbarrier_expect_tx(at.of_k.full(stage), BYTES_K + BYTES_MASK);
            for (int i = 0; i < SLABS_K; ++i)
                tma_load_4d(at.keys + stage * BYTES_K + i * SLAB, k, at.of_k.full(stage), i * 64, t0, item.kv_head,
                            item.n);
            load_mask_tile(at.masks + stage * BYTES_MASK, mask, at.of_k.full(stage), t0, item.m0, item.head, item.n,
                                 of_mask);
            if (step == 0) fetch_queries(item);
            mbarrier_wait(at.of_v.empty(stage), pipe.parity ^ 1);
            mbarrier_expect_tx(at.of_v.full(stage), BYTES_V);
            for (int i = 0; i < SLABS_V; ++i)
                tma_load_4d(at.values + stage * BYTES_V + i * SLAB, v, at.of_v.full(stage), i * 64, t0, item.kv_head,
                            item.n);
        }
    }
}

// ── products ────────────────────────────────────────────────────────────────────────────────────

// Starts to multiply a group's queries by the keys of a stage.
__device__ __forceinline__ void score(float (&scores)[KEYS / 8][4], u32 queries, u32 keys)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < (SIZE_K + 15) / 16; ++i)
        wgmma(scores, smem_descriptor(queries + i / 4 * SLAB_Q) + i % 4 * 2,
              smem_descriptor(keys + i / 4 * SLAB) + i % 4 * 2, i > 0);
    wgmma_commit();
}

// The results of one slab of values.
__device__ __forceinline__ float (&slab_of(float (&results)[EIGHTS][4], int slab))[8][4]
{
    return *(float(*)[8][4])results[slab * 8];
}

// Starts to add the weighted values of a stage to the results.
__device__ __forceinline__ void add_values(float (&results)[EIGHTS][4], const u32 (&weights)[KEYS / 16][4], u32 values)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i)
#pragma unroll
        for (int slab = 0; slab < SLABS_V; ++slab)
            wgmma_across(slab_of(results, slab), weights[i],
                         smem_descriptor(values + slab * SLAB) + i * (16 * 128 >> 4));
    wgmma_commit();
}

// Clears the values of a stage from number `from` on. All consumers call it.
__device__ __forceinline__ void clear_values(u32 values, int from)
{
    const int chunks = (KEYS - from) * 8;  // of a slab
    for (int item = threadIdx.x; item < chunks * SLABS_V; item += CONSUMERS)
        fill<16>(values + item / chunks * SLAB + from * 128 + item % chunks * 16, 0);
    fence_proxy_async();
    named_barrier_sync<CONSUMERS>(1);
}

// ── the kernel ──────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_long(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
               const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap y,
               const __grid_constant__ TensorMap mask_tiles, const M* mask, const M* second_mask, const long long* lengths, Sizes s, MaskSteps of_mask, float scale, float softcap, Work work)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(1024) unsigned char shared[];
    const Stages at(shared_address(shared));
    if (threadIdx.x == 0) {
        at.of_q.begin(1, 4);
        at.of_k.begin(1, GROUPS * 4);
        at.of_v.begin(1, GROUPS * 4);
        for (int group = 0; group < GROUPS; ++group) mbarrier_init(at.order + group * 8, 4);
        mbarrier_init_fence();
    }
    __syncthreads();
    grid_dependency_sync();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<FEW>();
        if (threadIdx.x == CONSUMERS) fetch(&q, &k, &v, &mask_tiles, at, work, s, of_mask, lengths);
        return;
    }
    setmaxnreg_inc<MANY>();
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    M* const terms = (M*)(shared + (at.terms() - at.queries)) + group * 64 * PITCH_TERMS;
    PipelineState<STAGES> pipe;
    PipelineState<PLACES> place;
    u32 own_phase = group == 0;
    const auto await_order = [&] {
        mbarrier_wait(at.order + group * 8, own_phase);
        own_phase ^= 1;
    };
    const auto pass_order = [&] {
        if (lane == 0) mbarrier_arrive(at.order + (group + 1) % GROUPS * 8);
    };
#pragma unroll 1
    for (int round = 0; work.item(round) < work.count(); ++round, place.next()) {
        const Item item(work, work.item(round), s, lengths);
        const int slot = group * PLACES + place.stage, row = item.m0 + group * 64 + warp * 16 + lane / 4;
        const u32 queries = at.queries + slot * BYTES_Q;
        MaskRow mask_row[2];
        for (int half = 0; half < 2; ++half)
            mask_row[half] = row_of_mask(mask, item.n, item.head, min(row + half * 8, s.rows - 1), of_mask);
        if constexpr (STAGED) {
            stage_terms(terms, mask, item.n, item.head, item.m0 + group * 64, s, of_mask);
            named_barrier_sync<128>(2 + group);
        }
        float results[EIGHTS][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        float scores[KEYS / 8][4] = {}, by[2];
        u32 weights[KEYS / 16][4];
        const auto weigh_step = [&](int step) {
            const int t0 = item.begin + step * KEYS;
            const int valid = MASK_TILES ? min(item.valid, s.mask_length) : item.valid;
            const Seen seen = {{row + item.shift, row + 8 + item.shift}, t0, valid, KEYS / 8};
            const auto rescale = [&](int half, float factor) { by[half] = factor; };
            if constexpr (MASK_TILES) {
                const MaskOfWarp of_warp(shared + (at.masks - at.queries) + pipe.stage * BYTES_MASK,
                                               group * 64 + warp * 16);
                weigh(scores, peak, sum, of_warp, seen, s, scale, softcap, rescale);
                release_what_was_loaded(at.of_k.empty(pipe.stage));
            } else if constexpr (STAGED) {
                const MaskOfTerms of_terms(terms, warp * 16 + lane / 4, t0);
                weigh(scores, peak, sum, of_terms, seen, s, scale, softcap, rescale);
            } else {
                const MaskInPlace in_place = {{mask_row[0], mask_row[1]}, t0, s, of_mask};
                weigh(scores, peak, sum, in_place, seen, s, scale, softcap, rescale);
            }
        };
        // Releases the keys of a stage, unless their mask is still to be read.
        const auto release_keys = [&] {
            if (!MASK_TILES && lane == 0) mbarrier_arrive(at.of_k.empty(pipe.stage));
        };
        const auto keep_weights = [&] {
#pragma unroll
            for (int i = 0; i < KEYS / 16; ++i) as_operand(weights[i], scores[2 * i], scores[2 * i + 1]);
        };
        // Waits for the values of a step. All groups come to the last one when it is nobody's turn.
        const auto await_values = [&](int step, const PipelineState<STAGES>& of) {
            const int t0 = item.begin + step * KEYS;
            mbarrier_wait(at.of_v.full(of.stage), of.parity);
            if (LENGTHS && t0 + KEYS > item.valid)
                clear_values(at.values + of.stage * BYTES_V, item.valid - t0);
        };
        mbarrier_wait(at.of_q.full(slot), place.parity);
        if (item.steps > 0) {
            mbarrier_wait(at.of_k.full(pipe.stage), pipe.parity);
            await_order();
            score(scores, queries, at.keys + pipe.stage * BYTES_K);
            pass_order();
            wgmma_wait<0>();
            settle(scores);
            release_keys();
            weigh_step(0);
            keep_weights();
#pragma unroll 1
            for (int step = 1; step < item.steps; ++step) {
                pipe.next();
                const PipelineState<STAGES> last = pipe.last();
                mbarrier_wait(at.of_k.full(pipe.stage), pipe.parity);
                await_order();
                settle(scores);
                score(scores, queries, at.keys + pipe.stage * BYTES_K);
                await_values(step - 1, last);
                settle(results);
                add_values(results, weights, at.values + last.stage * BYTES_V);
                pass_order();
                wgmma_wait<1>();
                settle(scores);
                release_keys();
                weigh_step(step);
                wgmma_wait<0>();
                settle(results);
                if (lane == 0) mbarrier_arrive(at.of_v.empty(last.stage));
#pragma unroll
                for (int half = 0; half < 2; ++half) multiply_row(results, half, by[half]);
                keep_weights();
            }
            await_values(item.steps - 1, pipe);
            await_order();
            settle(results);
            add_values(results, weights, at.values + pipe.stage * BYTES_V);
            pass_order();
            wgmma_wait<0>();
            settle(results);
            if (lane == 0) mbarrier_arrive(at.of_v.empty(pipe.stage));
            pipe.next();
        }

        named_barrier_sync<128>(2 + group);  // results take the place of the queries
        unsigned char* const own = shared + slot * BYTES_Q;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = over_quad_sum(sum[half]);
            const float factor = total == 0 ? 0.0f : 1 / total;
#pragma unroll
            for (int j = 0; j < EIGHTS; ++j)
                *(u32*)(own + j / 8 * SLAB_Q + swizzled(warp * 16 + lane / 4 + half * 8, j % 8) + lane % 4 * 4) =
                    pair_of(results[j][half * 2] * factor, results[j][half * 2 + 1] * factor);
        }
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) {
            for (int slab = 0; slab < SLABS_V; ++slab)
                tma_store_4d(&y, queries + slab * SLAB_Q + warp * 16 * 128, slab * 64, item.m0 + group * 64 + warp * 16,
                             item.head, item.n);
            tma_store_wait();
            mbarrier_arrive(at.of_q.empty(slot));
        }
    }
}
