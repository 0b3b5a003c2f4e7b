// What mma_tiles.cuh does, for at most eight rows: keys and values are the left operands of products, and the rows of queries
// columns of the right ones. With rows as the left operand, half of sixteen would be none; so this takes half as many
// products, exponentials and registers.
//
// Compile-time: see mma_tiles.cuh.

// A warp's state: a thread's two rows, and of these the sums of values, the maximum scores and the sums of weights. Sums of a
// sixteen of elements are those of two elements, eight apart, each of both rows.
struct ColumnSums {
    Row rows[2];
    float results[SIZE_V / 16][4], peak[2], sum[2];
};

__device__ __forceinline__ void clear(ColumnSums& sums)
{
#pragma unroll
    for (int j = 0; j < SIZE_V / 16; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) sums.results[j][q] = 0;
    sums.peak[0] = sums.peak[1] = -INFINITY;
    sums.sum[0] = sums.sum[1] = 0;
}

// Sets which rows of a block a thread has; it has `count`.
__device__ __forceinline__ void place_rows(ColumnSums& sums, int m0, int count, int first, const Sizes& s)
{
#pragma unroll
    for (int side = 0; side < 2; ++side)
        sums.rows[side] = row_of(min(m0 + int(threadIdx.x) % 4 * 2 + side, count - 1), first, s);
}

// See `begin_with_sinks` of warp_parts.cuh.
__device__ __forceinline__ void begin_with_sinks(ColumnSums& sums, const float* sink, float scale)
{
    if (!SINK || blockIdx.y != 0 || threadIdx.x / 32 != 0) return;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        sums.peak[side] = sink[sums.rows[side].head] / (RAW ? scale : 1.0f);
        sums.sum[side] = threadIdx.x < 4 ? 1.0f : 0.0f;  // the threads of a row add their sums
    }
}

// The queries of a warp's rows.
using QueryWords = u32[(SIZE_K + 31) / 32][4];
struct ColumnQueries {
    QueryWords at;

    // Loads them from shared memory; of the last thirty-two elements, half may be none.
    __device__ __forceinline__ void load(const T* from)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int c = 0; c < (SIZE_K + 31) / 32; ++c)
            ldmatrix_x4(at[c], shared_address(from + lane % 8 * PITCH_K + c * 32 + lane / 8 * 8));
    }
};

// What the mask adds to the scores of a thread.
struct ColumnMask {
    M at[MASK == NO_MASK ? 1 : KEYS / 8][MASK_ROWS ? 2 : 1];
    int first;  // of the warp's keys
    int length;

    __device__ __forceinline__ int key(int eight) const { return first + eight * 8 + int(threadIdx.x) % 32 / 4; }

    __device__ __forceinline__ float operator()(int eight, int side) const
    {
        if (key(eight) >= length) return -INFINITY;
        const M found = at[eight][MASK_ROWS ? side : 0];
        return MASK == NUMBERS ? float(found) : bool(found) ? 0.0f : -INFINITY;
    }
};

// Starts to load the mask of a warp's keys of the tile from position `t0` on.
__device__ __forceinline__ ColumnMask load_mask(const Row (&rows)[2], int t0, int n, const M* mask, const MaskSteps& by,
                                                const Sizes& s)
{
    ColumnMask found;
    found.first = t0 + threadIdx.x / 32 * KEYS;
    found.length = s.mask_length;
    if constexpr (MASK != NO_MASK) {
#pragma unroll
        for (int side = 0; side < (MASK_ROWS ? 2 : 1); ++side) {
            const M* const from = row_of_mask(mask, n, rows[side].head, rows[side].query, by).first;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const int t = found.key(j);
                found.at[j][side] = t < s.mask_length ? from[along<INNER_KEYS>(t, by.key, by.inner_key)] : M(0);
            }
        }
    }
    return found;
}

// Returns the greatest number of the threads of a row.
__device__ __forceinline__ float over_column_max(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

__device__ __forceinline__ float over_column_sum(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
}

// Turns the scores of a warp's rows into weights, and rescales the sums; `count` sixteens of keys have scores.
__device__ __forceinline__ void weigh_columns(ColumnSums& to, float (&scores)[KEYS / 16][4], int count, int shift, int valid,
                                              const ColumnMask& mask, const Sizes& s, float scale, float softcap)
{
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        if (j >= count) break;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const int eight = 2 * j + q / 2, side = q % 2;
            float& score = scores[j][q];
            if (!RAW) score *= scale;
            if (SOFTCAP) score = softcap * tanhf(score / softcap);
            if (MASK != NO_MASK) score += mask(eight, side);
            if (is_hidden(mask.key(eight), to.rows[side].query + shift, valid, s)) score = -INFINITY;
            top[side] = fmaxf(top[side], score);
        }
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const float most = fmaxf(to.peak[side], over_column_max(top[side]));
        const Exponentials exponentials(most, scale);
        const float by = exponentials.since(to.peak[side]);
        to.peak[side] = most;
        to.sum[side] *= by;
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) {
            if (j >= count) break;
#pragma unroll
            for (int q = side; q < 4; q += 2) to.sum[side] += scores[j][q] = exponentials.of(scores[j][q]);
        }
#pragma unroll
        for (int j = 0; j < SIZE_V / 16; ++j)
#pragma unroll
            for (int q = side; q < 4; q += 2) to.results[j][q] *= by;
    }
}

// Processes the keys of a warp that exist, in groups of sixteen: all KEYS, where WHOLE.
template <bool WHOLE>
__device__ __forceinline__ void multiply_keys(ColumnSums& to, const QueryWords& queries, const T* keys, const T* values,
                                              int there, int shift, int valid, const ColumnMask& mask, const Sizes& s,
                                              float scale, float softcap)
{
    // Products that add to the same sums wait for each other.
    constexpr int CHAINS = SIZE_K / 32 < 4 ? (SIZE_K < 32 ? 1 : 2) : 4;
    const int lane = threadIdx.x % 32, count = WHOLE ? KEYS / 16 : there;
    float scores[KEYS / 16][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        if (j >= count) break;
        float chains[CHAINS][4] = {};
#pragma unroll
        for (int c = 0; c < SIZE_K / 16; ++c) {
            u32 a[4];
            ldmatrix_x4(a, shared_address(keys + (j * 16 + lane % 16) * PITCH_K + c * 16 + lane / 16 * 8));
            mma_m16n8k16(chains[c % CHAINS], a, queries[c / 2][c % 2 * 2], queries[c / 2][c % 2 * 2 + 1]);
        }
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
            for (int i = 0; i < CHAINS; ++i) scores[j][q] += chains[i][q];
    }
    weigh_columns(to, scores, count, shift, valid, mask, s, scale, softcap);
#pragma unroll
    for (int c = 0; c < KEYS / 16; ++c) {
        if (c >= count) break;
        const u32 first = transposed(pair_of(scores[c][0], scores[c][1]));
        const u32 second = transposed(pair_of(scores[c][2], scores[c][3]));
#pragma unroll
        for (int j = 0; j < SIZE_V / 16; ++j) {
            u32 a[4];
            const int row = c * 16 + lane % 8 + lane / 16 * 8;
            ldmatrix_x4_trans(a, shared_address(values + row * PITCH_V + j * 16 + lane / 8 % 2 * 8));
            mma_m16n8k16(to.results[j], a, first, second);
        }
    }
}

// See `multiply_tile` of mma_tiles.cuh.
__device__ __forceinline__ void multiply_tile(ColumnSums& to, const QueryWords& queries, const T* tile,
                                              const ColumnMask& ahead, int end, bool, int shift, int valid, int, const M*,
                                              const MaskSteps&, const Sizes& s, float scale, float softcap)
{
    const int first = threadIdx.x / 32 * KEYS, there = (end - ahead.first + 15) / 16;
    const T* const keys = tile + first * PITCH_K;
    const T* const values = tile + TILE * PITCH_K + first * PITCH_V;
    if (there >= KEYS / 16) multiply_keys<true>(to, queries, keys, values, there, shift, valid, ahead, s, scale, softcap);
    else if (there > 0) multiply_keys<false>(to, queries, keys, values, there, shift, valid, ahead, s, scale, softcap);
}

// Stores a warp's partial results of the rows before `count`.
__device__ __forceinline__ void leave(const WarpParts& parts, const ColumnSums& from, int count)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int own = lane % 4 * 2 + side, row = warp * ROWS + own;
        const float total = over_column_sum(from.sum[side]);
        if (own >= count) continue;
        if (lane < 4) parts.peaks[row] = from.peak[side], parts.totals[row] = total;
        float* const to = parts.sums + row * PITCH_Y + lane / 4;
#pragma unroll
        for (int j = 0; j < SIZE_V / 16; ++j) {
            to[j * 16] = from.results[j][side];
            to[j * 16 + 8] = from.results[j][2 + side];
        }
    }
}
