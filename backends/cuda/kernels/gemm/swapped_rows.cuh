// Rows that threads cut into halves for swap_f16x3.cu, in shared memory.

// A row of some of a step, as two float16 numbers each.
typedef ShortWord FoundRow[HALVES][2];

// Stores rows that eight neighbouring threads each have in halves, `first` and every AT_ONCE behind it of ROWS, and the inverses
// of their scales. The second half of a tile is NEXT bytes behind the first.
template <int AT_ONCE, int ROWS, int NEXT, int PER>
__device__ __forceinline__ void cut_found(const FoundRow (&found)[PER], int first, unsigned char* tiles, float* scales)
{
    const int part = threadIdx.x % 8;
    u32 most[PER] = {};
#pragma unroll
    for (int i = 0; i < PER; ++i)
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
#pragma unroll
            for (int e = 0; e < 4; ++e) most[i] = max(most[i], found[i][half][e / 2].at[e % 2] & 0x7fffffff);
#pragma unroll
    for (int other = 1; other < 8; other *= 2)
#pragma unroll
        for (int i = 0; i < PER; ++i) most[i] = max(most[i], __shfl_xor_sync(~0u, most[i], other));
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const RowScale by(most[i]);
        const int row = first + i * AT_ONCE;
        if (ROWS % AT_ONCE && row >= ROWS) continue;
        if (part == 0) scales[row] = by.inverse * LESS;
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            u32 high[2], low[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float x = __uint_as_float(found[i][half][0].at[e]) * by.scale;
                const float y = __uint_as_float(found[i][half][1].at[e]) * by.scale;
                high[e] = pair_of_finite(x, y);
                const float2 rounded = halves_of(high[e]);
                low[e] = pair_of(x - rounded.x, y - rounded.y);
            }
            unsigned char* const to = tiles + half * NEXT + part % 2 * 8;
            *(uint2*)(to + swizzled(row, part / 2)) = make_uint2(high[0], high[1]);
            *(uint2*)(to + swizzled(row, 4 + part / 2)) = make_uint2(low[0], low[1]);
        }
    }
}

// Rows of `a` of a step, as two float16 numbers each. Eight neighbouring threads have a row: in each tile of 32 terms, the
// first or last two of each of two neighbouring fours, which are a word of high parts and one of low ones.
struct Rows {
    static constexpr int AT_ONCE = 128 / 8, PER = (BM + AT_ONCE - 1) / AT_ONCE;
    const T* from;
    int lda, rows;  // of the tile, from this thread's first one on
    int column;     // of its first term
    FoundRow found[PER];

    static __device__ __forceinline__ int first() { return threadIdx.x % 128 / 8; }

    __device__ __forceinline__ Rows(const T* a, const Block& block, int m, int lda)
        : from(a + (long long)(block.m0 + first()) * lda + block.first * STEP + threadIdx.x % 8 / 2 * 8 + threadIdx.x % 2 * 2),
          lda(lda), rows(min(BM, m - block.m0) - first()),
          column(block.first * STEP + threadIdx.x % 8 / 2 * 8 + threadIdx.x % 2 * 2)
    {
        if constexpr (!A_IN_HALVES) pin(from);
    }

    __device__ __forceinline__ void load(int step)
    {
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const int further = step * STEP + half * 32 + four * 4;
                    const bool inside = i * AT_ONCE < rows && (K % STEP == 0 || column + further < K);
                    found[i][half][four] = global_short(from + (inside ? (long long)i * AT_ONCE * lda + further : 0), inside);
                }
    }

    __device__ __forceinline__ void cut(unsigned char* tiles, float* scales) const
    {
        cut_found<AT_ONCE, BM, TILE_A>(found, first(), tiles, scales);
    }
};
