// Rows in halves, as halves.cu reads them; halves.cuh says what halves are. In memory they are in the order of packed
// constants (step_f16x3.cuh): [step][row], rows of 32 high and 32 low parts (128 bytes) in swizzled order, term 4 i + j of
// every sixteen at 8 (i / 2) + 2 j + i % 2. Behind them are the inverses of the scales of rows, [block][row] of blocks of
// 64 terms, times LESS. There are `rows` of them, a multiple of eight.
//
// With OF_PIXELS, rows are pixels of an image, channels last, of which there may be any number. They are in plain order:
// tensor maps swizzle what they bring to shared memory, wherever windows begin.

#ifndef OF_PIXELS
#define OF_PIXELS 0
#endif

constexpr int BLOCK_TERMS = 64;

struct RowsInHalves {
    unsigned char* halves;
    int rows, terms;

    // Where the high parts of the four terms are whose first position in a step is `position`; low parts are at ^ 64.
    __device__ __forceinline__ unsigned char* place(int row, int step, int position) const
    {
        return halves + ((long long)step * rows + row) * 128 + (position / 8 ^ (OF_PIXELS ? 0 : row & 7)) * 16 + position % 8 * 2;
    }

    __device__ __forceinline__ float scale(int row, int block) const
    {
        const float* scales = (const float*)(halves + (long long)rows * terms * 4);
        return scales[(long long)block * rows + row] / LESS;
    }

    __device__ __forceinline__ void store_scale(int row, int block, float inverse) const
    {
        float* scales = (float*)(halves + (long long)rows * terms * 4);
        scales[(long long)block * rows + row] = inverse * LESS;
    }
};

// Swaps pairs with a lane, and returns four terms in the order of their positions: those of the pair that is `mine` and of
// the one that the other lane has for it, in turn. The lane with the lower number has the first terms.
__device__ __forceinline__ uint2 alternating(u32 mine, u32 for_other, int other, bool is_first)
{
    const u32 theirs = __shfl_xor_sync(~0u, for_other, other);
    const u32 first = is_first ? mine : theirs, second = is_first ? theirs : mine;
    return make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
}

__device__ __forceinline__ Halves halves_of_pair(float x, float y, const RowScale& by)
{
    x *= by.scale, y *= by.scale;
    return Halves(x, y, finite_or_zero(x), finite_or_zero(y));
}

// Sixteen neighbouring threads have a row of a block, four adjacent terms each. All threads of a warp take part in the
// functions below, with or without a row: shuffles of one half of a warp at a time take several times as long.

// Returns the greatest of four terms, of those that are finite.
__device__ __forceinline__ float greatest_of(const float (&x)[4])
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) most = fmaxf(most, finite_or_zero(fabsf(x[i])));
    return most;
}

// Makes the greatest terms of threads those of their blocks, of several at once: shuffles take long.
template <int COUNT> __device__ __forceinline__ void over_blocks(float (&most)[COUNT])
{
#pragma unroll
    for (int other = 1; other < 16; other *= 2)
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], other));
}

// Stores four adjacent terms of a row with this scale, if there is such a row.
__device__ __forceinline__ void store_scaled(const RowsInHalves& to, const float (&x)[4], const RowScale& by, int row,
                                             int term)
{
    const Halves first = halves_of_pair(x[0], x[1], by), second = halves_of_pair(x[2], x[3], by);
    const bool odd = term / 4 % 2;
    const uint2 high = alternating(odd ? second.high : first.high, odd ? first.high : second.high, 1, !odd);
    const uint2 low = alternating(odd ? second.low : first.low, odd ? first.low : second.low, 1, !odd);
    if (row >= to.rows) return;
    unsigned char* at = to.place(row, term / 32, term % 32 / 8 * 8 + odd * 4);
    *(uint2*)at = high;
    *(uint2*)((unsigned long long)at ^ 64) = low;
    if (term % BLOCK_TERMS == 0) to.store_scale(row, term / BLOCK_TERMS, by.inverse);
}

__device__ __forceinline__ void store_halves(const RowsInHalves& to, const float (&x)[4], int row, int term)
{
    float most[1] = {greatest_of(x)};
    over_blocks(most);
    store_scaled(to, x, RowScale(__float_as_uint(most[0])), row, term);
}

// Stores sixteen adjacent terms of a row from `term` on, if there is such a row: of each eight of them, the four lanes of the
// row have two adjacent ones.
__device__ __forceinline__ void store_sixteen(const RowsInHalves& to, const float* first, const float* second,
                                              const RowScale& by, int row, int term, int end)
{
    const int column = threadIdx.x % 4;
    const bool upper = column / 2;  // has the first terms of the second eight
    const Halves even = halves_of_pair(first[0], first[1], by), odd = halves_of_pair(second[0], second[1], by);
    const uint2 high = alternating(upper ? odd.high : even.high, upper ? even.high : odd.high, 2, !upper);
    const uint2 low = alternating(upper ? odd.low : even.low, upper ? even.low : odd.low, 2, !upper);
    if (row >= end) return;
    unsigned char* at = to.place(row, term / 32, (term % 32 / 8 + upper) * 8 + column % 2 * 4);
    *(uint2*)at = high;
    *(uint2*)((unsigned long long)at ^ 64) = low;
}

// Returns the greatest of the terms of a row that its four lanes have, two adjacent ones of each of some eights from `first`
// on; `half` says which of the lane's two rows.
template <int EIGHTS, int COUNT>
__device__ __forceinline__ float greatest_of_row(const float (&x)[COUNT][4], int first, int half)
{
    float most = 0;
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j)
#pragma unroll
        for (int q = 0; q < 2; ++q) most = fmaxf(most, finite_or_zero(fabsf(x[first + j][half * 2 + q])));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
}

// Stores a block of sixteen rows, which a warp has as products leave their sums: eights of terms from `first` on, of
// rows lane / 4 and eight rows further, two adjacent terms per thread. `row` and `term` are those of the block. Rows from
// `end` on are not stored.
template <int COUNT>
__device__ __forceinline__ void store_block_in_halves(const RowsInHalves& to, const float (&x)[COUNT][4], int first,
                                                      int row, int term, int end)
{
    constexpr int EIGHTS = BLOCK_TERMS / 8;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int line = row + lane / 4 + half * 8;
        const RowScale by(__float_as_uint(greatest_of_row<EIGHTS>(x, first, half)));
#pragma unroll
        for (int j = 0; j < EIGHTS; j += 2)
            store_sixteen(to, x[first + j] + half * 2, x[first + j + 1] + half * 2, by, line, term + j * 8, end);
        if (lane % 4 == 0 && line < end) to.store_scale(line, term / BLOCK_TERMS, by.inverse);
    }
}
