// softmax(softcap(scale * q @ k') + mask) @ v in float32 on Hopper's tensor cores, for many queries. Like
// attention_f16x3.cu, but each of GROUPS warpgroups processes 64 rows of queries and multiplies directly from shared
// memory, except for queries and weights, which stay in registers.
//
// Rows are cut in their places (eights.cuh). Tiles of KEYS keys are loaded one step ahead.
//
// Compile-time, besides the constants of online_softmax.cuh: SIZE_K and SIZE_V, of a head, rounded up to a multiple of
// 64; GROUPS; KEYS of a step; STAGES, 2, or 1 if there is one step; VECTOR, elements per copy (1, 2, 4);
// VECTOR_Y, results per store (1, 2); RESIDENT, blocks per multiprocessor; IN_HALVES and PLAIN, see store_halves.cuh;
// and two wgmma instructions.

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "attention/online_softmax.cuh"
#include "gemm/halves.cuh"
#include "attention/halves_of_rows.cuh"
#include "attention/halves_of_weights.cuh"
#if IN_HALVES
#include "gemm/store_halves.cuh"
#endif

constexpr bool BIASES = MASK != NO_MASK && !MASK_ROWS;  // see attention_wgmma.cu
constexpr int WARPS = GROUPS * 4, THREADS = WARPS * 32, ROWS = GROUPS * 64;
constexpr int EIGHTS = SIZE_V / 8;
constexpr int BYTES_K = KEYS * SIZE_K * 4, BYTES_V = KEYS * SIZE_V * 4, BYTES_STAGE = BYTES_K + BYTES_V;
constexpr int BYTES_Q = ROWS * SIZE_K * 4;

#include "attention/eights.cuh"
#include "attention/products_f16x3.cuh"
#include "attention/store_rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_f16x3_wgmma(const float* q, const float* k, const float* v, const M* mask, const M* second_mask, const float* past_k,
                      const float* past_v, const long long* lengths, float* y, unsigned char* halves, Sizes s,
                      Steps of_q, Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(1024) unsigned char shared[];
    // Queries are in registers before the second stage is used.
    constexpr int AT_Q = BYTES_STAGE, ENDS = STAGES * BYTES_STAGE, ENDS_Q = AT_Q + BYTES_Q;
    float* const inverses = (float*)(shared + (ENDS > ENDS_Q ? ENDS : ENDS_Q));
    float* const biases = inverses + STAGES * 2 * KEYS;
    float* const inverses_q = biases + STAGES * KEYS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int pair = blockIdx.x / tiles, m0 = (tiles - 1 - blockIdx.x % tiles) * ROWS;
    const int head = pair % s.heads, n = pair / s.heads, kv_head = head / (s.heads / s.kv_heads);
    grid_dependency_sync();

    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = s.past + (LENGTHS ? valid - s.rows : 0);  // position of the first query
    const Keys range = keys_of(m0 + shift, min(m0 + ROWS, s.rows) - 1 + shift, valid, s);
    const int count = max(0, (range.end - range.begin + KEYS - 1) / KEYS);
    const int row = m0 + warp * 16 + lane / 4;
    MaskRow mask_row[2];
    for (int half = 0; half < 2; ++half)
        mask_row[half] = row_of_mask(mask, n, head, min(row + half * 8, s.rows - 1), of_mask);

    // One loop copies and cuts rows of all kinds: see attention_f16x3.cu.
    const Sources sources = {q, k, v, past_k, past_v, of_q, of_k, of_v};
    const auto memory_of = [&](int part, int step) {
        return shared + (part == QUERIES ? AT_Q : step % STAGES * BYTES_STAGE + (part == VALUES ? BYTES_K : 0));
    };
    const auto copy_part = [&](int part, int step) {
        const Source from = sources.of(part, n, head, kv_head, s);
        const bool is_q = part == QUERIES;
        const int rows = is_q ? ROWS : KEYS, begin = is_q ? m0 : range.begin + step * KEYS;
        const int end = is_q ? s.rows : range.end;
        if (SIZE_K == SIZE_V || part != VALUES) Eights<SIZE_K>{memory_of(part, step)}.copy(rows, begin, end, from);
        else Eights<SIZE_V>{memory_of(part, step)}.copy(rows, begin, end, from);
    };
    const auto cut_part = [&](int part, int step) {
        const int rows = part == QUERIES ? ROWS : KEYS;
        float* const to = part == QUERIES ? inverses_q : inverses + (step % STAGES * 2 + (part == VALUES)) * KEYS;
        if (SIZE_K == SIZE_V || part != VALUES) Eights<SIZE_K>{memory_of(part, step)}.cut(rows, to);
        else Eights<SIZE_V>{memory_of(part, step)}.cut(rows, to);
    };
    Queries queries;
    float inverse[2];
    float results[EIGHTS][4] = {}, peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    // A warp past the last row has no scores to process.
    const bool has_rows = m0 + warp * 16 < s.rows;
#pragma unroll 1
    for (int step = -1; step < count; ++step) {
        const int next = step + 1, first = step < 0 ? QUERIES : KEYS_OF_STEP;
        if (next < count)
#pragma unroll 1
            for (int part = first; part <= VALUES; ++part) copy_part(part, next);
        cp_async_commit();
        if (step >= 0) {
            const float* const scales = inverses + step % STAGES * 2 * KEYS + lane % 4 * 2;
            float scores[KEYS / 8][4];
            multiply_queries(scores, queries, shared_address(memory_of(KEYS_OF_STEP, step)));
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const float2 of_keys = *(const float2*)(scales + j * 8);
#pragma unroll
                for (int q = 0; q < 4; ++q) scores[j][q] *= (q % 2 ? of_keys.y : of_keys.x) * inverse[q / 2];
            }
            const int t0 = range.begin + step * KEYS;
            const Seen seen = {{row + shift, row + 8 + shift}, t0, valid, has_rows ? KEYS / 8 : 0};
            const MaskInPlace in_place = {{mask_row[0], mask_row[1]}, t0, s, of_mask};
            const auto staged = [&](int eight, int side, int) {
                return biases[step % STAGES * KEYS + eight * 8 + lane % 4 * 2 + side];
            };
            if constexpr (BIASES) weigh(scores, results, peak, sum, staged, seen, s, scale, softcap);
            else weigh(scores, results, peak, sum, in_place, seen, s, scale, softcap);
            WeightHalves<KEYS> weights;
            weights.read(scores, [&](int eight) { return *(const float2*)(scales + KEYS + eight * 8); }, KEYS / 16);
            multiply_values(results, weights, shared_address(memory_of(VALUES, step)));
        }
        if (next == count) break;
        cp_async_wait<0>();
        __syncwarp();
#pragma unroll 1
        for (int part = first; part <= VALUES; ++part) cut_part(part, next);
        if constexpr (BIASES)
            for (int i = threadIdx.x; i < KEYS; i += THREADS)
                biases[next % STAGES * KEYS + i] = added<float>(mask_row[0], range.begin + next * KEYS + i, s, of_mask);
        fence_proxy_async();
        __syncthreads();
        if (step < 0) {
            queries.read(shared_address(shared + AT_Q));
            for (int half = 0; half < 2; ++half) inverse[half] = inverses_q[warp * 16 + lane / 4 + half * 8];
            __syncthreads();  // keys take the place of the queries
        }
    }

    store_rows(results, sum, y, halves, of_y, s, n, head, m0 + warp * 16, tiles);
}
