// softmax(softcap(scale * q @ k') + mask) @ v in float32 on Hopper's tensor cores, for many queries. Like
// attention_f16x3.cu, but each of GROUPS warpgroups processes 64 rows of queries and multiplies directly from shared
// memory, except for queries and weights, which stay in registers.
//
// Rows are cut in their places: eight of them are replaced by their high parts and then their low parts, in slabs of 64
// columns, each of eight rows of 128 bytes in swizzled order. Tiles of KEYS keys are loaded one step ahead.
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
#if IN_HALVES
#include "gemm/store_halves.cuh"
#endif

constexpr bool BIASES = MASK != NO_MASK && !MASK_ROWS;  // see attention_wgmma.cu
constexpr int WARPS = GROUPS * 4, THREADS = WARPS * 32, ROWS = GROUPS * 64;
constexpr int EIGHTS = SIZE_V / 8;
constexpr int BYTES_K = KEYS * SIZE_K * 4, BYTES_V = KEYS * SIZE_V * 4, BYTES_STAGE = BYTES_K + BYTES_V;
constexpr int BYTES_Q = ROWS * SIZE_K * 4;

// Rows in shared memory, eight by eight.
template <int SIZE> struct Eights {
    static constexpr int SLABS = SIZE / 64, BYTES = 8 * SIZE * 4;
    static constexpr int COUNT = 2;  // rows of a thread at a time
    unsigned char* memory;

    __device__ __forceinline__ float* row(int row) const { return (float*)(memory + row * SIZE * 4); }

    // Where a slab of parts, 0 high, 1 low, of eight rows begins.
    __device__ __forceinline__ static constexpr int slab(int part, int slab) { return (part * SLABS + slab) * 1024; }

    // Calls act(first row of a thread) for `count` rows, of which a warp has eight at a time.
    template <typename Act> __device__ __forceinline__ static void each(int count, const Act& act)
    {
#pragma unroll 1
        for (int first = threadIdx.x / 32 * 8; first < count; first += WARPS * 8) act(first + int(threadIdx.x) % 32 / 8);
    }

    // Copies `count` rows from row `begin` on, each by eight threads; zeros from row `end` on.
    __device__ __forceinline__ void copy(int count, int begin, int end, const Source& from) const
    {
        each(count, [&](int first) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = first + 4 * i;
                const bool inside = begin + at < end;
                const float* const source = from(inside ? begin + at : 0);
#pragma unroll
                for (int column = threadIdx.x % 8 * VECTOR; column < SIZE; column += 8 * VECTOR) {
                    const bool exists = inside && column < from.size;
                    cp_async<VECTOR>(shared_address(row(at) + column), source + (exists ? column : 0), exists);
                }
            }
        });
    }

    // Where the parts of a row go.
    struct Store {
        unsigned char* eight;
        int row;

        __device__ __forceinline__ void operator()(int column, uint2 high, uint2 low) const
        {
            unsigned char* const to = eight + slab(0, column / 64) + swizzled(row, column % 64 / 8) + column % 8 * 2;
            *(uint2*)to = high;
            *(uint2*)(to + slab(1, 0)) = low;
        }
    };

    // Cuts `count` rows, a multiple of eight, which this warp has copied.
    __device__ __forceinline__ void cut(int count, float* inverses) const
    {
        each(count, [&](int first) {
            RowsToCut<COUNT, Store> rows;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = first + 4 * i;
                rows.from[i] = row(at);
                rows.store[i] = {memory + at / 8 * BYTES, at % 8};
            }
            const Inverses<COUNT> found = ::cut<SIZE>(rows);
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (threadIdx.x % 8 == 0) inverses[first + 4 * i] = found.at[i];
        });
    }
};

// Sixteen rows of queries of a warp in registers.
struct Queries {
    u32 high[SIZE_K / 16][4], low[SIZE_K / 16][4];

    __device__ __forceinline__ void read(u32 memory)
    {
        typedef Eights<SIZE_K> Q;
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < SIZE_K / 16; ++c) {
            const u32 from = memory + row / 8 * Q::BYTES + Q::slab(0, c / 4) + swizzled(row % 8, c % 4 * 2 + lane / 16);
            ldmatrix_x4(high[c], from);
            ldmatrix_x4(low[c], from + Q::slab(1, 0));
        }
    }
};

// The scores of a tile of keys; small products come first.
__device__ __forceinline__ void multiply_queries(float (&scores)[KEYS / 8][4], const Queries& queries, u32 keys)
{
    typedef Eights<SIZE_K> K;
    const auto part = [&](int p, int c) { return smem_descriptor_apart<K::BYTES>(keys + K::slab(p, c / 4)) + c % 4 * 2; };
    settle(scores);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < SIZE_K / 16; ++c) {
        wgmma(scores, queries.low[c], part(0, c), c > 0);
        wgmma(scores, queries.high[c], part(1, c), true);
    }
#pragma unroll
    for (int c = 0; c < SIZE_K / 16; ++c) wgmma(scores, queries.high[c], part(0, c), true);
    wgmma_commit();
    wgmma_wait<0>();
    settle(scores);
}

// Adds the weighed values of a tile to the results.
__device__ __forceinline__ void multiply_values(float (&results)[EIGHTS][4], const WeightHalves<KEYS>& weights, u32 values)
{
    typedef Eights<SIZE_V> V;
#pragma unroll
    for (int slab = 0; slab < V::SLABS; ++slab) {
        const auto part = [&](int p, int c) {
            return smem_descriptor_apart<V::BYTES>(values + V::slab(p, slab)) + c * (2 * V::BYTES >> 4);
        };
        float sums[8][4];
        settle(sums);
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) {
            wgmma_across(sums, weights.low[c], part(0, c), c > 0);
            wgmma_across(sums, weights.high[c], part(1, c), true);
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) wgmma_across(sums, weights.high[c], part(0, c), true);
        wgmma_commit();
        wgmma_wait<0>();
        settle(sums);
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) results[slab * 8 + j][q] += sums[j][q] * weights.inverse[q / 2];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_f16x3_wgmma(const float* q, const float* k, const float* v, const M* mask, const float* past_k,
                      const float* past_v, const long long* lengths, float* y, unsigned char* halves, Sizes s,
                      Steps of_q, Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles)
{
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
    const M* mask_row[2] = {mask, mask};
    if (MASK != NO_MASK)
        for (int half = 0; half < 2; ++half)
            mask_row[half] += n * of_mask.batch + head * of_mask.head + min(row + half * 8, s.rows - 1) * of_mask.row;

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
            const auto bias_of = [&](int eight, int side, int half) {
                return BIASES ? biases[step % STAGES * KEYS + eight * 8 + lane % 4 * 2 + side]
                              : in_place(eight, side, half);
            };
            weigh(scores, results, peak, sum, bias_of, seen, s, scale, softcap);
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

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float total = over_quad_sum(sum[half]);
        const float by = total == 0 ? 0.0f : 1 / total;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) results[j][half * 2] *= by, results[j][half * 2 + 1] *= by;
        if (!PLAIN || row + half * 8 >= s.rows) continue;
        float* const to = y + n * of_y.batch + head * of_y.head + (row + half * 8) * of_y.row;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const int column = j * 8 + lane % 4 * 2;
            const float2 pair = make_float2(results[j][half * 2], results[j][half * 2 + 1]);
            if (VECTOR_Y == 2) {
                if (column < s.size_v) *(float2*)(to + column) = pair;
            } else {
                if (column < s.size_v) to[column] = pair.x;
                if (column + 1 < s.size_v) to[column + 1] = pair.y;
            }
        }
    }
#if IN_HALVES
    const int first = n * s.rows;
    const RowsInHalves to = {halves, (int(gridDim.x) / (tiles * s.heads) * s.rows + 7) / 8 * 8, s.heads * SIZE_V};
#pragma unroll
    for (int j = 0; j < EIGHTS; j += BLOCK_TERMS / 8)
        store_block_in_halves(to, results, j, first + m0 + warp * 16, head * SIZE_V + j * 8, first + s.rows);
#endif
}
