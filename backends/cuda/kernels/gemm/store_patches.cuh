// The epilogue of a convolution whose tiles are patches of an image, eight pixels wide: stores the maxima of every 2 x 2
// results, in halves (IN_HALVES), as they are (PLAIN), or both. A warp has two rows of a patch, so that each of its threads
// has results of pixels above one another. Columns come in blocks of 64.

// Where the 16 rows of a warp are: the number of their four maxima's first one, and how many of these exist.
struct PooledRow {
    int first, count;

    __device__ __forceinline__ PooledRow(int row, const Image& image)
    {
        const int patch = row / BM, number = patch - divide(patch, image.pixels) * image.of_image;
        const int down = divide(number, image.columns), across = number - down * image.of_row;
        const int y = down * (BM / 8) + row % BM / 8, x = across * 8;
        const int n = divide(patch, image.pixels), height = image.out_height / 2, width = image.out_width / 2;
        first = (n * height + y / 2) * width + x / 2;
        count = y < image.out_height ? min(4, width - x / 2) : 0;
    }
};

// Stores the maxima of a thread and its neighbour, two adjacent ones of every eight columns. Both have them, so one stores
// high parts and the other low ones.
__device__ __forceinline__ void store_pooled_in_halves(const RowsInHalves& to, const float (&x)[BLOCK_TERMS / 8][2], int row,
                                                       int term, bool exists)
{
    constexpr int EIGHTS = BLOCK_TERMS / 8;
    const int lane = threadIdx.x % 32, column = lane % 4;
    const bool upper = column / 2, low = lane & 4;
    float most = 0;
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j)
#pragma unroll
        for (int q = 0; q < 2; ++q) most = fmaxf(most, finite_or_zero(fabsf(x[j][q])));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const RowScale by(__float_as_uint(most));
#pragma unroll
    for (int j = 0; j < EIGHTS; j += 2) {
        const Halves even = halves_of_pair(x[j][0], x[j][1], by), odd = halves_of_pair(x[j + 1][0], x[j + 1][1], by);
        const u32 first = low ? even.low : even.high, second = low ? odd.low : odd.high;
        const uint2 parts = alternating(upper ? second : first, upper ? first : second, 2, !upper);
        if (!exists) continue;
        unsigned char* at = to.place(row, (term + j * 8) / 32, (j % 4 + upper) * 8 + column % 2 * 4);
        *(uint2*)((unsigned long long)at ^ (low ? 64 : 0)) = parts;
    }
    if (column == 0 && !low && exists) to.store_scale(row, term / BLOCK_TERMS, by.inverse);
}

template <int COUNT>
__device__ __forceinline__ void store_blocks(const Results& results, float (&sums)[COUNT][4], int row, int column)
{
    constexpr int EIGHTS = BLOCK_TERMS / 8;
    static_assert(COUNT % EIGHTS == 0, "whole blocks");
    const int lane = threadIdx.x % 32;
    const PooledRow place(row, results.image);
    const int pixel = place.first + lane / 8;
    const bool exists = lane / 8 < place.count;
#pragma unroll
    for (int j0 = 0; j0 < COUNT; j0 += EIGHTS) {
        if (column + j0 * 8 >= results.n) break;
        float best[EIGHTS][2];
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            const int at = column + (j0 + j) * 8 + lane % 4 * 2;
            const Operands<2> with = results.operands<2>(0, at);
            const float (&of)[4] = sums[j0 + j];
            const float above[2] = {of[0], of[1]}, below[2] = {of[2], of[3]};
            const Neighbours<R, 2> first = with_epilogue(above, with), second = with_epilogue(below, with);
            Neighbours<R, 2> found;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float greater = maximum(first.at[q], second.at[q]);
                best[j][q] = found.at[q] = maximum(greater, __shfl_xor_sync(~0u, greater, 4));
            }
            if (PLAIN && exists && lane / 4 % 2 == j % 2) *(Neighbours<R, 2>*)(results.c + results.place(pixel, at)) = found;
        }
#if IN_HALVES
        store_pooled_in_halves(results.halves, best, pixel, column + j0 * 8, exists);
#endif
    }
}
