// The rows of `a` of one step in registers, as one or two tf32 numbers each, and their products with tiles of `b`:
// see tf32x3.cuh. A step has one tile of `b` for each part.

constexpr int TILES_B = PARTS, EIGHTS = BK / 8;
constexpr bool IN_STEPS = PARTS == 2;  // the sums of every step are complete before they are added to the totals

struct Factors {};  // nothing multiplies terms here

struct Rows {
    Parts of[EIGHTS];

    __device__ __forceinline__ void read_eight(u32 tile, u32 place, int k)
    {
        u32 found[4];
        ldmatrix_x4(found, (tile + place) ^ (k << 5));
        cut(of[k], found);
    }

    __device__ __forceinline__ void read(u32 tile, u32 place, const Factors&)
    {
#pragma unroll
        for (int k = 0; k < EIGHTS; ++k) read_eight(tile, place, k);
    }

    // Issues the small products of eight terms. They come first, while the sums are small.
    __device__ __forceinline__ void multiply_small(float (&sums)[TN][4], u32 tile_b, int k) const
    {
        if constexpr (PARTS == 2) {
            wgmma(sums, of[k].low, smem_descriptor(tile_b) + k * 2, k > 0);
            wgmma(sums, of[k].cross, smem_descriptor(tile_b + BYTES_B) + k * 2, true);
        }
    }

    __device__ __forceinline__ void multiply_great(float (&sums)[TN][4], u32 tile_b, bool add) const
    {
#pragma unroll
        for (int k = 0; k < EIGHTS; ++k)
            wgmma(sums, of[k].high, smem_descriptor(tile_b) + k * 2, k > 0 || IN_STEPS || add);
        wgmma_commit();
    }

    // Issues the products; `add`: to sums of earlier steps, unless IN_STEPS.
    __device__ __forceinline__ void multiply(float (&sums)[TN][4], u32 tile_b, bool add) const
    {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < EIGHTS; ++k) multiply_small(sums, tile_b, k);
        multiply_great(sums, tile_b, add);
    }

    // Multiplies each group of eight terms as soon as it is read.
    __device__ __forceinline__ void read_and_multiply(float (&sums)[TN][4], u32 tile, u32 place, bool add,
                                                      const Factors&)
    {
#pragma unroll
        for (int k = 0; k < EIGHTS; ++k) {
            read_eight(tile, place, k);
            wgmma_fence();
            multiply_small(sums, tile + BYTES_A, k);
        }
        multiply_great(sums, tile + BYTES_A, add);
    }

    __device__ __forceinline__ void add_to(float (&totals)[TN][4], const float (&sums)[TN][4]) const
    {
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q];
    }
};
