// softmax(softcap(scale * q @ k') + mask) @ v in float32 on Hopper's tensor cores, for many queries and keys, where keys and
// values are in halves already (cut_keys.cu). As in attention_f16x3_wgmma.cu, each of GROUPS warpgroups processes 64 rows of
// queries; other warps bring tiles of keys, STAGES ahead, by bulk copies. So warpgroups drift apart, and one multiplies
// while another computes weights.
//
// Compile-time: those of attention_f16x3_wgmma.cu; PRODUCERS, threads that bring keys: a warp, or a warpgroup, of which
// consumers take registers.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "attention/online_softmax.cuh"
#include "gemm/halves.cuh"
#include "attention/halves_of_rows.cuh"
#include "attention/halves_of_weights.cuh"
#if IN_HALVES
#include "gemm/store_halves.cuh"
#endif

constexpr bool BIASES = MASK != NO_MASK && !MASK_ROWS;  // see attention_wgmma.cu
constexpr int WARPS = GROUPS * 4, CONSUMERS = WARPS * 32, THREADS = CONSUMERS + PRODUCERS, ROWS = GROUPS * 64;
constexpr int EIGHTS = SIZE_V / 8;
constexpr int BYTES_K = KEYS * SIZE_K * 4, BYTES_V = KEYS * SIZE_V * 4, BYTES_TILE = BYTES_K + BYTES_V + 2 * KEYS * 4;
constexpr int BYTES_STAGE = (BYTES_TILE + (BIASES ? KEYS * 4 : 0) + 1023) / 1024 * 1024;
constexpr int AT_Q = STAGES * BYTES_STAGE, BARRIERS = AT_Q + ROWS * SIZE_K * 4 + ROWS * 4;

#include "attention/eights.cuh"
#include "attention/products_f16x3.cuh"
#include "attention/store_rows.cuh"

// Which keys a block reads: `count` tiles from `first` on, of keys before `valid`.
struct Tiles {
    int first, count, valid, shift;

    __device__ __forceinline__ Tiles(int m0, int n, const long long* lengths, const Sizes& s)
        : valid(LENGTHS ? int(lengths[n]) : s.total), shift(s.past + (LENGTHS ? valid - s.rows : 0))
    {
        const Keys range = keys_of(m0 + shift, min(m0 + ROWS, s.rows) - 1 + shift, valid, s);
        first = range.begin / KEYS;
        count = range.end > range.begin ? (range.end + KEYS - 1) / KEYS - first : 0;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_cut(const float* q, const unsigned char* cut, const M* mask, const M* second_mask, const long long* lengths, float* y,
              unsigned char* halves, Sizes s, Steps of_q, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles,
              int tiles_of_keys)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(1024) unsigned char shared[];
    float* const inverses_q = (float*)(shared + AT_Q + ROWS * SIZE_K * 4);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = blockIdx.x / tiles, m0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int head = pair % s.heads, n = pair / s.heads, kv_head = head / (s.heads / s.kv_heads);
    const Pipeline<STAGES> barriers(shared_address(shared) + BARRIERS);
    if (threadIdx.x == 0) barriers.begin(1, WARPS);
    __syncthreads();

    PipelineState<STAGES> pipe;
    if (warp >= WARPS) {
        if constexpr (PRODUCERS == 128) setmaxnreg_dec<24>();
        if (warp > WARPS) return;
        grid_dependency_sync();
        const Tiles of_keys(m0, n, lengths, s);
        const unsigned char* const from = cut + ((long long)(n * s.kv_heads + kv_head) * tiles_of_keys + of_keys.first) * BYTES_TILE;
        const MaskRow all_rows = row_of_mask(mask, n, head, 0, of_mask);
        for (int step = 0; step < of_keys.count; ++step, pipe.next()) {
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            unsigned char* const stage = shared + pipe.stage * BYTES_STAGE;
            if constexpr (BIASES) {
                for (int i = lane; i < KEYS; i += 32)
                    ((float*)(stage + BYTES_TILE))[i] = added<float>(all_rows, (of_keys.first + step) * KEYS + i, s, of_mask);
                __syncwarp();
            }
            if (lane > 0) continue;
            mbarrier_expect_tx(barriers.full(pipe.stage), BYTES_TILE);
            bulk_copy(shared_address(stage), from + (long long)step * BYTES_TILE, BYTES_TILE, barriers.full(pipe.stage));
        }
        return;
    }
    if constexpr (PRODUCERS == 128) setmaxnreg_inc<240>();

    // Queries are there when the kernel that cuts keys lets this one start: it has waited for them. The first-level cache
    // may be older.
    constexpr bool PAST_CACHE = VECTOR == 4;
    if constexpr (!PAST_CACHE) grid_dependency_sync();
    const Source of_queries = {q, q + n * of_q.batch + head * of_q.head, 0, s.size_k, of_q.row};
    const Eights<SIZE_K> own = {shared + AT_Q + warp * 16 * SIZE_K * 4, 0, 1};  // a warp's own rows
    own.copy(16, m0 + warp * 16, s.rows, of_queries);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    own.cut(16, inverses_q + warp * 16);
    __syncwarp();
    Queries queries;
    queries.read(shared_address(shared + AT_Q));
    float inverse[2];
    for (int half = 0; half < 2; ++half) inverse[half] = inverses_q[warp * 16 + lane / 4 + half * 8];
    if constexpr (PAST_CACHE) grid_dependency_sync();

    const Tiles of_keys(m0, n, lengths, s);
    const int shift = of_keys.shift;
    const int row = m0 + warp * 16 + lane / 4;
    MaskRow mask_row[2];
    for (int half = 0; half < 2; ++half)
        mask_row[half] = row_of_mask(mask, n, head, min(row + half * 8, s.rows - 1), of_mask);
    float results[EIGHTS][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    // A warp past the last row has no scores to process.
    const bool has_rows = m0 + warp * 16 < s.rows;
#pragma unroll 1
    for (int step = 0; step < of_keys.count; ++step) {
        unsigned char* const stage = shared + pipe.stage * BYTES_STAGE;
        const float* const scales = (const float*)(stage + BYTES_K + BYTES_V) + lane % 4 * 2;
        mbarrier_wait(barriers.full(pipe.stage), pipe.parity);
        float scores[KEYS / 8][4];
        multiply_queries(scores, queries, shared_address(stage));
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
            const float2 by = *(const float2*)(scales + j * 8);
#pragma unroll
            for (int q = 0; q < 4; ++q) scores[j][q] *= (q % 2 ? by.y : by.x) * inverse[q / 2];
        }
        const int t0 = (of_keys.first + step) * KEYS;
        const Seen seen = {{row + shift, row + 8 + shift}, t0, of_keys.valid, has_rows ? KEYS / 8 : 0};
        const MaskInPlace in_place = {{mask_row[0], mask_row[1]}, t0, s, of_mask};
        const auto staged = [&](int eight, int side, int) {
            return ((const float*)(stage + BYTES_TILE))[eight * 8 + lane % 4 * 2 + side];
        };
        if constexpr (BIASES) weigh(scores, results, peak, sum, staged, seen, s, scale, softcap);
        else weigh(scores, results, peak, sum, in_place, seen, s, scale, softcap);
        WeightHalves<KEYS> weights;
        weights.read(scores, [&](int eight) { return *(const float2*)(scales + KEYS + eight * 8); }, KEYS / 16);
        multiply_values(results, weights, shared_address(stage + BYTES_K));
        release_what_was_loaded(barriers.empty(pipe.stage));
        pipe.next();
    }

    store_rows(results, sum, y, halves, of_y, s, n, head, m0 + warp * 16, tiles);
}
