// softmax(softcap(scale * q @ k') + mask) @ v in float32 without tensor cores (flash attention, online softmax).
//
// A block processes TM * DOWN rows of queries of heads with the same keys (attention_parts.cuh) and loops over the keys
// in tiles of KEYS. A thread has TM rows and, of each tile, the keys across, across + ACROSS, ...; weights are
// exchanged through shared memory, because a thread's columns of the result need all of them. The copy of keys overlaps
// the product with values, and vice versa. When the maximum score of a row grows, the accumulated sums are rescaled.
// Rows that see no key yield 0.
//
// Compile-time, besides the constants of heads.cuh and attention_parts.cuh: SIZE_K, the size of a head rounded up to a
// multiple of 8, and SIZE_V, rounded up to a multiple of 2 * ACROSS; VECTOR_K, VECTOR_V, elements per copy (1, 2, 4);
// VECTOR_Y, results per store (1, 2, 4); TM; SOFTCAP; MASK_ROWS, whether rows of the mask differ.

#include "ptx/copy.cuh"
#include "ptx/pdl.cuh"
#include "attention/heads.cuh"
#include "attention/attention_parts.cuh"

constexpr int ACROSS = 16, DOWN = 8, THREADS = ACROSS * DOWN;
constexpr int ROWS = TM * DOWN, KEYS = 64, TN = KEYS / ACROSS;
constexpr int WIDE = SIZE_V % (4 * ACROSS) == 0 ? 4 : 2;  // neighbouring columns of a thread
constexpr int COLUMNS = SIZE_V / ACROSS;
// Four elements of padding per row place the rows of a column of words in different banks.
constexpr int PITCH_K = SIZE_K + 4, PITCH_V = SIZE_V, PITCH_P = KEYS + 4;

struct alignas(4 * WIDE) Words {
    float at[WIDE];
};

// Copies COUNT rows from row `t0` on, and zeros past the last row.
template <int COUNT, int N, int SIZE, int PITCH, typename Find>
__device__ __forceinline__ void load(float* tile, int t0, int total, int size, Find find)
{
    constexpr int PER_ROW = SIZE / N;
    for (int item = threadIdx.x; item < COUNT * PER_ROW; item += THREADS) {
        const int row = item / PER_ROW, column = item % PER_ROW * N;
        const bool inside = t0 + row < total && column < size;
        cp_async<N>(tile + row * PITCH + column, find(inside ? t0 + row : 0) + (inside ? column : 0),
                      inside);
    }
}

template <typename Combine> __device__ __forceinline__ float over_row(float x, Combine combine)
{
#pragma unroll
    for (int other = ACROSS / 2; other; other /= 2)
        x = combine(x, __shfl_xor_sync(~0u, x, other));
    return x;
}

// Adds the products of TM queries and the first COUNT of a thread's keys.
template <int COUNT>
__device__ __forceinline__ void multiply(float (&scores)[TM][TN], const float* queries,
                                         const float* keys)
{
    for (int d = 0; d < SIZE_K; d += 4) {
        float4 a[TM], b[COUNT];
#pragma unroll
        for (int i = 0; i < TM; ++i) a[i] = *(const float4*)(queries + i * PITCH_K + d);
#pragma unroll
        for (int j = 0; j < COUNT; ++j) b[j] = *(const float4*)(keys + j * ACROSS * PITCH_K + d);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < COUNT; ++j) {
                scores[i][j] += a[i].x * b[j].x;
                scores[i][j] += a[i].y * b[j].y;
                scores[i][j] += a[i].z * b[j].z;
                scores[i][j] += a[i].w * b[j].w;
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_tiles(const float* q, const float* k, const float* v, const M* mask, const M* second_mask, const float* past_k,
                const float* past_v, const long long* lengths, float* y, float* left,
                float2* beside, Sizes s, Steps of_q, Steps of_k, Steps of_v, Steps of_y,
                MaskSteps of_mask, float scale, float softcap, int tiles)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(16) float shared[];
    float* const queries = shared;
    float* const keys = queries + ROWS * PITCH_K;
    float* const values = keys + KEYS * PITCH_K;
    float* const weights = values + KEYS * PITCH_V;
    const int across = threadIdx.x % ACROSS, down = threadIdx.x / ACROSS;
    const int pair = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;
    const int groups = s.heads / GROUP, n = pair / groups, first = pair % groups * GROUP;
    const int kv_head = first / (s.heads / s.kv_heads), rows = GROUP * s.rows, m0 = tile * ROWS;
    grid_dependency_sync();

    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = s.past + (LENGTHS ? valid - s.rows : 0);  // position of the first query
    const Keys range = keys_of_block(m0, ROWS, shift, valid, KEYS, s);
    const auto load_keys = [&](int t0) {
        load<KEYS, VECTOR_K, SIZE_K, PITCH_K>(keys, t0, s.total, s.size_k, [&](int t) {
            return position(past_k, k, t, n, kv_head, s.size_k, s, of_k);
        });
        cp_async_commit();
    };
    load<ROWS, VECTOR_K, SIZE_K, PITCH_K>(queries, m0, rows, s.size_k, [&](int row) {
        const Row at = row_of(row, first, s);
        return q + n * of_q.batch + at.head * of_q.head + at.query * of_q.row;
    });
    load_keys(range.begin);

    float results[TM][COLUMNS] = {}, peak[TM], sum[TM] = {};
#pragma unroll
    for (int i = 0; i < TM; ++i) peak[i] = -INFINITY;

    for (int t0 = range.begin; t0 < range.end; t0 += KEYS) {
        load<KEYS, VECTOR_V, SIZE_V, PITCH_V>(values, t0, s.total, s.size_v, [&](int t) {
            return position(past_v, v, t, n, kv_head, s.size_v, s, of_v);
        });
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();

        const float* const own = queries + down * TM * PITCH_K;
        float scores[TM][TN] = {};
        if (range.end - t0 > ACROSS) multiply<TN>(scores, own, keys + across * PITCH_K);
        else multiply<1>(scores, own, keys + across * PITCH_K);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const Row at = row_of(min(m0 + down * TM + i, rows - 1), first, s);
            const MaskRow shown = row_of_mask(mask, n, at.head, at.query, of_mask);
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int t = t0 + across + j * ACROSS;
                float score = scores[i][j] * scale;
                if (SOFTCAP) score = softcap * tanhf(score / softcap);
                if (MASK != NO_MASK) score += added<float>(shown, t, s, of_mask);
                if (is_hidden(t, at.query + shift, valid, s)) score = -INFINITY;
                scores[i][j] = score;
                top = fmaxf(top, score);
            }
            top = fmaxf(peak[i], over_row(top, [](float a, float b) { return fmaxf(a, b); }));
            const float base = top == -INFINITY ? 0.0f : top, by = expf(peak[i] - base);
            peak[i] = top;
            float total = 0;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float weight = expf(scores[i][j] - base);
                weights[(down * TM + i) * PITCH_P + across + j * ACROSS] = weight;
                total += weight;
            }
            sum[i] = sum[i] * by + total;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) results[i][c] *= by;
        }
        cp_async_wait<0>();
        __syncthreads();
        if (t0 + KEYS < range.end) load_keys(t0 + KEYS);

        for (int t = 0; t < min(KEYS, range.end - t0); t += 4) {
            float a[TM][4];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                *(float4*)a[i] = *(const float4*)(weights + (down * TM + i) * PITCH_P + t);
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int c = 0; c < COLUMNS; c += WIDE) {
                    const float* from = values + (t + step) * PITCH_V + c * ACROSS + across * WIDE;
                    const Words b = *(const Words*)from;
#pragma unroll
                    for (int i = 0; i < TM; ++i)
#pragma unroll
                        for (int w = 0; w < WIDE; ++w) results[i][c + w] += a[i][step] * b.at[w];
                }
        }
        __syncthreads();
    }
    cp_async_wait<0>();

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = m0 + down * TM + i;
        const float total = over_row(sum[i], [](float a, float b) { return a + b; });
        if (row >= rows) continue;
        const Row at = row_of(row, first, s);
        const long long place = SPLIT ? place_of(n, at, s) : 0;
        const float by = SPLIT ? 1.0f : total == 0 ? 0.0f : 1 / total;
        float* to = SPLIT ? left + place * SIZE_V
                          : y + n * of_y.batch + at.head * of_y.head + at.query * of_y.row;
        if (SPLIT && across == 0) beside[place] = make_float2(peak[i], total);
#pragma unroll
        for (int c = 0; c < COLUMNS; c += WIDE) {
            const int column = c * ACROSS + across * WIDE;
            Words out;
#pragma unroll
            for (int w = 0; w < WIDE; ++w) out.at[w] = results[i][c + w] * by;
            if (SPLIT || VECTOR_Y >= WIDE) {
                if (column < s.size_v) *(Words*)(to + column) = out;
            } else {
#pragma unroll
                for (int w = 0; w < WIDE; ++w)
                    if (column + w < s.size_v) to[column + w] = out.at[w];
            }
        }
    }
}
