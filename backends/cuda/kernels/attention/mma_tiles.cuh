// Attention on tensor cores with queries in registers (flash attention: online softmax, no matrix of scores in memory):
// loops over the keys in tiles, which cp.async copies to shared memory STAGES ahead, and combines the results.
//
// Compile-time, besides the constants of warp_parts.cuh: SIZE_K, like SIZE_V; VECTOR_K, VECTOR_V, elements per copy
// (1, 2, 4, 8); STAGES.

#include "attention/warp_parts.cuh"

// Eight elements of padding per row place the rows of a column in different banks.
constexpr int PITCH_K = SIZE_K + 8, PITCH_V = SIZE_V + 8;
constexpr int STAGE = TILE * (PITCH_K + PITCH_V);

// Copies N elements to shared memory, or writes zeros; see cp_async.cuh for ONCE.
template <int N, bool ONCE = false> __device__ __forceinline__ void bring(T* to, const T* from, bool inside)
{
    if constexpr (N == 1) *to = inside ? *from : T(0.0f);
    else cp_async<N, ONCE>(shared_address(to), from, inside);
}

// Copies TILE keys or values, and zeros from position `end` on.
template <int N, int SIZE>
__device__ __forceinline__ void load(T* tile, const T* past, const T* now, int t0, int end, int n, int head,
                                     int size, const Sizes& s, const Steps& by)
{
    constexpr int PER_ROW = SIZE / N;
    for (int item = threadIdx.x; item < TILE * PER_ROW; item += THREADS) {
        const int row = item / PER_ROW, column = item % PER_ROW * N;
        const bool inside = t0 + row < end && column < size;
        const T* from = position(past, now, inside ? t0 + row : 0, n, head, size, s, by);
        bring<N>(tile + row * (SIZE + 8) + column, from + (inside ? column : 0), inside);
    }
}

// The elements of two adjacent queries in the order that the products read them.
__device__ __forceinline__ u32 two_of(const T* row, int column, int size, bool inside)
{
    if constexpr (VECTOR_K > 1) return inside && column < size ? *(const u32*)(row + column) : 0;
    return pair_of(inside && column < size ? float(row[column]) : 0.0f,
                   inside && column + 1 < size ? float(row[column + 1]) : 0.0f);
}

// Loads the queries of a warp's rows, of which a block has some from `m0` on of `rows` in all, and says which these are.
__device__ __forceinline__ void load_queries(u32 (&queries)[TM][SIZE_K / 16][4], Row (&to)[TM][2], const T* q, int n,
                                             int m0, int first, int rows, const Sizes& s, const Steps& by)
{
    const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = m0 + (warp_m * TM + i) * 16 + half * 8 + lane / 4;
            const Row at = to[i][half] = row_of(min(row, rows - 1), first, s);
            const T* from = q + n * by.batch + at.head * by.head + at.query * by.row;
#pragma unroll
            for (int c = 0; c < SIZE_K / 16; ++c)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    queries[i][c][half + 2 * side] =
                        two_of(from, c * 16 + side * 8 + lane % 4 * 2, s.size_k, row < rows);
        }
}

// Processes the keys of a warp that exist, in groups of sixteen: all KEYS, where WHOLE.
template <bool WHOLE>
__device__ __forceinline__ void multiply_keys(Accumulators& to, const u32 (&queries)[TM][SIZE_K / 16][4],
                                              const T* keys, const T* values, int there, int shift, int valid, int n,
                                              const MaskTile& ahead, const M* mask, const MaskSteps& of_mask,
                                              const Sizes& s, float scale, float softcap)
{
    const int lane = threadIdx.x % 32;
    const int count = WHOLE ? KEYS / 16 : there;
    float scores[TM][KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        if (j >= count) break;
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

    weigh_rows(to, scores, count, shift, valid, n, ahead, mask, of_mask, s, scale, softcap);
#pragma unroll
    for (int c = 0; c < KEYS / 16; ++c) {
        if (c >= count) break;
        u32 weights[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) as_operand(weights[i], scores[i][2 * c], scores[i][2 * c + 1]);
#pragma unroll
        for (int j = 0; j < SIZE_V / 16; ++j) {
            u32 b[4];
            const T* from = values + (c * 16 + lane % 16) * PITCH_V + j * 16 + lane / 16 * 8;
            ldmatrix_x4_trans(b, shared_address(from));
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                mma_m16n8k16(to.results[i][2 * j], weights[i], b[0], b[1]);
                mma_m16n8k16(to.results[i][2 * j + 1], weights[i], b[2], b[3]);
            }
        }
    }
}

// Processes one tile of keys from position `t0` on, whose mask is on its way; only those before `end` count.
__device__ __forceinline__ void multiply_tile(Accumulators& to, const u32 (&queries)[TM][SIZE_K / 16][4],
                                              const T* tile, const MaskTile& ahead, int end, bool has_rows,
                                              int shift, int valid, int n, const M* mask, const MaskSteps& of_mask,
                                              const Sizes& s, float scale, float softcap)
{
    const int warp_n = threadIdx.x / 32 % WARPS_N;
    const T* const keys = tile + warp_n * KEYS * PITCH_K;
    const T* const values = tile + TILE * PITCH_K + warp_n * KEYS * PITCH_V;
    // The number of groups of sixteen keys that exist; warps without rows have none.
    const int there = has_rows ? (end - ahead.first + 15) / 16 : 0;
    // Without branches between its groups, products of a whole tile follow one another closely.
    if (there >= KEYS / 16)
        multiply_keys<true>(to, queries, keys, values, there, shift, valid, n, ahead, mask, of_mask, s, scale, softcap);
    else
        multiply_keys<false>(to, queries, keys, values, there, shift, valid, n, ahead, mask, of_mask, s, scale, softcap);
}
