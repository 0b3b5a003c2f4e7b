// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on tensor cores (flash attention: online
// softmax, no matrix of scores in memory), with accumulators and exponentials in float32.
//
// A block has 16 * TM * WARPS_M rows of queries of heads with the same keys (attention_parts.cuh). It
// goes over the keys in tiles, which cp.async brings to shared memory STAGES - 1 ahead. WARPS_N groups
// of warps share the keys of a tile and add up their results in the end: few rows need that to keep a
// GPU busy. Where the greatest score grows, what has been summed up is scaled down. Rows that see no
// key give 0.
//
// Compile-time, besides what heads.cuh and attention_parts.cuh want: SIZE_K and SIZE_V, sizes of heads
// rounded up to 16; VECTOR_K, VECTOR_V, elements copied at once (1, 2, 4, 8), VECTOR_Y, results stored
// at once (1, 8); KEYS of a warp's step; TM; WARPS_M; WARPS_N; STAGES; CLUSTER, the parts of keys if their blocks
// form a cluster and put their results together themselves, else 0; and what online_softmax.cuh wants.

#include "attention/heads.cuh"
#include "attention/attention_parts.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
constexpr bool BIASES = false;
#include "attention/online_softmax.cuh"

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int ROWS = 16 * TM * WARPS_M;
constexpr int TILE = KEYS * WARPS_N;
// Eight more elements a row put the rows of a column in different banks.
constexpr int PITCH_K = SIZE_K + 8, PITCH_V = SIZE_V + 8;
constexpr int STAGE = TILE * (PITCH_K + PITCH_V);
constexpr int PITCH_Y = SIZE_V + 4;  // of sums in shared memory, in floats

struct alignas(16) Eight {
    T at[8];
};

// Copies N elements to shared memory, or writes zeros.
template <int N> __device__ __forceinline__ void bring(T* to, const T* from, bool inside)
{
    if constexpr (N == 1) *to = inside ? *from : T(0.0f);
    else cp_async<N>(shared_address(to), from, inside);
}

// Copies TILE keys or values, zeros behind the last one.
template <int N, int SIZE>
__device__ __forceinline__ void load(T* tile, const T* past, const T* now, int t0, int n, int head,
                                     int size, const Sizes& s, const Steps& by)
{
    constexpr int PER_ROW = SIZE / N;
    for (int item = threadIdx.x; item < TILE * PER_ROW; item += THREADS) {
        const int row = item / PER_ROW, column = item % PER_ROW * N;
        const bool inside = t0 + row < s.total && column < size;
        const T* from = position(past, now, inside ? t0 + row : 0, n, head, size, s, by);
        bring<N>(tile + row * (SIZE + 8) + column, from + (inside ? column : 0), inside);
    }
}

// Two neighbouring queries' elements as the products want them.
__device__ __forceinline__ u32 two_of(const T* row, int column, int size, bool inside)
{
    if constexpr (VECTOR_K > 1) return inside && column < size ? *(const u32*)(row + column) : 0;
    return pair_of(inside && column < size ? float(row[column]) : 0.0f,
                   inside && column + 1 < size ? float(row[column + 1]) : 0.0f);
}

// Puts together what the blocks of a cluster have in shared memory: of each row the sums of values, and beside them the
// greatest score and the sum of weights. `store` gets the place of a row's head, and four neighbouring results.
template <typename Store>
__device__ __forceinline__ void join_parts(const float* sums, const float4* beside, int rows, float steep,
                                           Store store)
{
    constexpr int FOURS = SIZE_V / 4;
    cluster_sync();
    for (int item = threadIdx.x * CLUSTER + blockIdx.y; item < rows * FOURS; item += THREADS * CLUSTER) {
        const int row = item / FOURS, column = item % FOURS * 4;
        float4 own[CLUSTER], found[CLUSTER];
        float most = -INFINITY, total = 0, out[4] = {};
#pragma unroll
        for (int part = 0; part < CLUSTER; ++part) {
            own[part] = dsmem_load(shared_address(beside + row), part);
            found[part] = dsmem_load(shared_address(sums + row * SIZE_V + column), part);
        }
#pragma unroll
        for (int part = 0; part < CLUSTER; ++part) most = fmaxf(most, own[part].x);
        if (most == -INFINITY) most = 0;
#pragma unroll
        for (int part = 0; part < CLUSTER; ++part) {
            const float by = exp2_of((own[part].x - most) * steep);
            total += own[part].y * by;
            out[0] += found[part].x * by;
            out[1] += found[part].y * by;
            out[2] += found[part].z * by;
            out[3] += found[part].w * by;
        }
        const float by = total == 0 ? 0.0f : 1 / total;
        for (int e = 0; e < 4; ++e) out[e] *= by;
        store(row, column, out);
    }
    cluster_sync();  // nobody leaves while others read its memory
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_mma(const T* q, const T* k, const T* v, const M* mask, const T* past_k, const T* past_v,
              const long long* lengths, T* y, float* left, float2* beside, Sizes s, Steps of_q,
              Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap,
              int tiles)
{
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
    const int pair = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;
    const int groups = s.heads / GROUP, n = pair / groups, first = pair % groups * GROUP;
    const int kv_head = first / (s.heads / s.kv_heads), rows = GROUP * s.rows, m0 = tile * ROWS;
    grid_dependency_sync();

    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = s.past + (LENGTHS ? valid - s.rows : 0);  // position of the first query
    const Keys range = keys_of_block(m0, ROWS, shift, valid, TILE, s);
    const int begin = range.begin, count = max(0, (range.end - begin + TILE - 1) / TILE);
    const auto load_tile = [&](int step) {
        T* const to = buffers + step % STAGES * STAGE;
        load<VECTOR_K, SIZE_K>(to, past_k, k, begin + step * TILE, n, kv_head, s.size_k, s, of_k);
        load<VECTOR_V, SIZE_V>(to + TILE * PITCH_K, past_v, v, begin + step * TILE, n, kv_head,
                               s.size_v, s, of_v);
    };
    for (int step = 0; step < max(1, STAGES - 1); ++step) {
        if (step < count) load_tile(step);
        cp_async_commit();
    }

    u32 queries[TM][SIZE_K / 16][4];
    Row row_at[TM][2];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m0 + (warp_m * TM + i) * 16 + half * 8 + lane / 4;
            const Row at = row_at[i][half] = row_of(min(row, rows - 1), first, s);
            const T* from = q + n * of_q.batch + at.head * of_q.head + at.query * of_q.row;
#pragma unroll
            for (int c = 0; c < SIZE_K / 16; ++c)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    queries[i][c][half + 2 * side] =
                        two_of(from, c * 16 + side * 8 + lane % 4 * 2, s.size_k, row < rows);
        }

    float results[TM][SIZE_V / 8][4] = {}, peak[TM][2], sum[TM][2] = {};
#pragma unroll
    for (int i = 0; i < TM; ++i) peak[i][0] = peak[i][1] = -INFINITY;

    for (int step = 0; step < count; ++step) {
        if (STAGES > 1 && step + STAGES - 1 < count) load_tile(step + STAGES - 1);
        cp_async_commit();
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        const T* const keys = buffers + step % STAGES * STAGE + warp_n * KEYS * PITCH_K;
        const T* const values = buffers + step % STAGES * STAGE + TILE * PITCH_K
                                + warp_n * KEYS * PITCH_V;
        const int t0 = begin + step * TILE + warp_n * KEYS;
        // Sixteens of keys that are there at all; warps without rows have none.
        const int there = m0 + warp_m * TM * 16 < rows ? (range.end - t0 + 15) / 16 : 0;

        float scores[TM][KEYS / 8][4] = {};
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            if (j >= there) break;
#pragma unroll
            for (int c = 0; c < SIZE_K / 16; ++c) {
                u32 b[4];
                const int row = j * 16 + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, shared_address(keys + row * PITCH_K + c * 16 + lane / 8 % 2 * 8));
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    mma_m16n8k16(scores[i][2 * j], queries[i][c], b[0], b[1]);
                    mma_m16n8k16(scores[i][2 * j + 1], queries[i][c], b[2], b[3]);
                }
            }
        }

#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const M* shown[2] = {mask, mask};
            if (MASK != NO_MASK)
                for (int half = 0; half < 2; ++half)
                    shown[half] += n * of_mask.batch + row_at[i][half].head * of_mask.head
                                   + row_at[i][half].query * of_mask.row;
            const Seen seen = {{row_at[i][0].query + shift, row_at[i][1].query + shift},
                               t0, valid, there * 2, nullptr};
            weigh(scores[i], results[i], peak[i], sum[i], shown, seen, s, of_mask, scale, softcap);
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) {
            if (c >= there) break;
            u32 weights[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                as_operand(weights[i], scores[i][2 * c], scores[i][2 * c + 1]);
#pragma unroll
            for (int j = 0; j < SIZE_V / 16; ++j) {
                u32 b[4];
                const T* from = values + (c * 16 + lane % 16) * PITCH_V + j * 16 + lane / 16 * 8;
                ldmatrix_x4_trans(b, shared_address(from));
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    mma_m16n8k16(results[i][2 * j], weights[i], b[0], b[1]);
                    mma_m16n8k16(results[i][2 * j + 1], weights[i], b[2], b[3]);
                }
            }
        }
        __syncthreads();
        if (STAGES == 1 && step + 1 < count) load_tile(step + 1);
    }

    // Groups of warps meet in shared memory: what each has summed up, and beside what greatest score.
    cp_async_wait<0>();
    __syncthreads();
    float* const sums = (float*)shared;
    float* const peaks = sums + WARPS_N * ROWS * PITCH_Y;
    float* const totals = peaks + WARPS_N * ROWS;
    float4* const joined_beside = (float4*)(totals + WARPS_N * ROWS);
    float* const joined = (float*)(joined_beside + ROWS);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_n * ROWS + (warp_m * TM + i) * 16 + half * 8 + lane / 4;
            peaks[row] = peak[i][half];
            totals[row] = over_quad_sum(sum[i][half]);
#pragma unroll
            for (int j = 0; j < SIZE_V / 8; ++j)
                *(float2*)(sums + row * PITCH_Y + j * 8 + lane % 4 * 2) =
                    make_float2(results[i][j][half * 2], results[i][j][half * 2 + 1]);
        }
    __syncthreads();
    for (int item = threadIdx.x; item < ROWS * (SIZE_V / 8); item += THREADS) {
        const int row = item / (SIZE_V / 8), column = item % (SIZE_V / 8) * 8;
        if (m0 + row >= rows || column >= s.size_v) continue;
        const Row at = row_of(m0 + row, first, s);
        float top = -INFINITY, total = 0, found[8] = {};
        for (int w = 0; w < WARPS_N; ++w) top = fmaxf(top, peaks[w * ROWS + row]);
        const float most = top == -INFINITY ? 0.0f : top;
        for (int w = 0; w < WARPS_N; ++w) {
            const float by = exp2_of((peaks[w * ROWS + row] - most) * steepness(scale));
            const float* from = sums + (w * ROWS + row) * PITCH_Y + column;
            total += totals[w * ROWS + row] * by;
#pragma unroll
            for (int e = 0; e < 8; ++e) found[e] += from[e] * by;
        }
        if constexpr (CLUSTER > 0) {
            float4* const to = (float4*)(joined + row * SIZE_V + column);
            to[0] = make_float4(found[0], found[1], found[2], found[3]);
            to[1] = make_float4(found[4], found[5], found[6], found[7]);
            if (column == 0) joined_beside[row] = make_float4(top, total, 0, 0);
            continue;
        } else if constexpr (SPLIT) {
            const long long place = place_of(n, at, s);
            float4* const to = (float4*)(left + place * SIZE_V + column);
            to[0] = make_float4(found[0], found[1], found[2], found[3]);
            to[1] = make_float4(found[4], found[5], found[6], found[7]);
            if (column == 0) beside[place] = make_float2(top, total);
            continue;
        }
        const float by = total == 0 ? 0.0f : 1 / total;
        Eight out;
#pragma unroll
        for (int e = 0; e < 8; ++e) out.at[e] = T(found[e] * by);
        T* to = y + n * of_y.batch + at.head * of_y.head + at.query * of_y.row + column;
        if constexpr (VECTOR_Y == 8) {
            *(Eight*)to = out;
        } else {
#pragma unroll
            for (int e = 0; e < 8; ++e)
                if (column + e < s.size_v) to[e] = out.at[e];
        }
    }
    if constexpr (CLUSTER > 0)
        join_parts(joined, joined_beside, min(ROWS, rows - m0), steepness(scale),
                   [&](int row, int column, const float (&out)[4]) {
                       const Row at = row_of(m0 + row, first, s);
                       T* const to = y + n * of_y.batch + at.head * of_y.head + at.query * of_y.row;
#pragma unroll
                       for (int e = 0; e < 4; ++e)
                           if (column + e < s.size_v) to[column + e] = T(out[e]);
                   });
}
