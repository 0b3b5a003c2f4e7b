// The tensor core work of one step: 128 bytes of every row of the tiles of `a` and `b` in shared memory, which are four
// atoms of 32 bytes.
//
// Compile-time: TM TN, a warp's tiles of 16 x 8 results; ACROSS, see operand_b.cuh; PARTS, see tf32x3.cuh; ZERO_B, whether the sums
// of the rows of `a` are needed, too. Generated: MMA and, where WGMMA_CODE, wgmma in its place, or
// wgmma_across where ACROSS_CODE; SumFragment,
// the accumulators of one tile in a thread.

constexpr int ATOMS = 4;
constexpr u32 ONES = 0x01010101;

// The position within the tile of the results of a warp, or of its part of a warpgroup.
struct Place {
    int m, n, lane;

    __device__ __forceinline__ Place()
    {
        const int warp = threadIdx.x / 32;
        m = WGMMA ? warp / 4 / WARPS_N * 64 + warp % 4 * 16 : warp / WARPS_N * TM * 16;
        n = (WGMMA ? warp / 4 : warp) % WARPS_N * TN * 8;
        lane = threadIdx.x % 32;
    }
};

struct Sums {
    SumFragment of[TM][TN];
    SumFragment rows[TM];  // the terms of `a`, the same in all columns (ZERO_B)
};

#if WGMMA_CODE
static_assert(!ZERO_B && !PARTS, "these are products of single warps");

// Issues the products of one step.
__device__ __forceinline__ void multiply_step(Sums& sums, u32 tile, const Place& place)
{
    const uint64 a = smem_descriptor(tile + place.m / 64 * 64 * 128);
    wgmma_fence();
#if ACROSS_CODE
    static_assert(STRIP == 64 && WARPS_N == 1, "strips of 128 bytes, all of which a warpgroup reads");
    const uint64 b = smem_descriptor_across<STRIP_BYTES>(tile + BYTES_A);
#pragma unroll
    for (int k = 0; k < ATOMS; ++k) wgmma_across(sums.of[0], a + k * 2, b + k * (16 * 128 >> 4));
#else
    const uint64 b = smem_descriptor(tile + BYTES_A + place.n * 128);
#pragma unroll
    for (int k = 0; k < ATOMS; ++k) wgmma(sums.of[0], a + k * 2, b + k * 2);
#endif
    wgmma_commit();
}
#else
__device__ __forceinline__ void read_a(u32 (&found)[4], u32 tile, const Place& place, int i, int k)
{
    ldmatrix_x4(found, tile + swizzled(place.m + i * 16 + place.lane % 16, k * 2 + place.lane / 16));
}

// Two adjacent columns of tiles at once.
__device__ __forceinline__ void read_b(u32 (&found)[4], u32 tile, const Place& place, int j, int k)
{
    const int lane = place.lane;
    if constexpr (ACROSS)
        return ldmatrix_x4_trans(
            found, tile + place_across(k * 16 + lane % 16, place.n + j * 16 + lane / 16 * 8));
    ldmatrix_x4(found, tile + swizzled(place.n + j * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
}

__device__ __forceinline__ void read_parts(Parts& parts, u32 tile, const Place& place, int i, int k)
{
    u32 found[4];
    read_a(found, tile, place, i, k);
    cut(parts, found);
}

// The product of 16 rows with two adjacent columns of tiles.
__device__ __forceinline__ void multiply_pair(SumFragment* sums, const u32 (&a)[4], const u32 (&b)[4])
{
    MMA(sums[0], a, b[0], b[1]);
    MMA(sums[1], a, b[2], b[3]);
}

// The same for numbers split into parts, small products first.
__device__ __forceinline__ void multiply_parts(Sums& sums, u32 tile, const Place& place)
{
    const u32 tile_b = tile + BYTES_A;
    if constexpr (PARTS == 2) {
#pragma unroll
        for (int k = 0; k < ATOMS; ++k) {
            Parts parts[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) read_parts(parts[i], tile, place, i, k);
#pragma unroll
            for (int j = 0; j < TN / 2; ++j) {
                u32 high[4], low[4];
                read_b(high, tile_b, place, j, k);
                read_b(low, tile_b + BYTES_B, place, j, k);
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    multiply_pair(sums.of[i] + 2 * j, parts[i].low, high);
                    multiply_pair(sums.of[i] + 2 * j, parts[i].cross, low);
                }
            }
        }
    }
#pragma unroll
    for (int k = 0; k < ATOMS; ++k) {
        Parts parts[TM];
#pragma unroll
        for (int i = 0; i < TM; ++i) read_parts(parts[i], tile, place, i, k);
#pragma unroll
        for (int j = 0; j < TN / 2; ++j) {
            u32 high[4];
            read_b(high, tile_b, place, j, k);
#pragma unroll
            for (int i = 0; i < TM; ++i) multiply_pair(sums.of[i] + 2 * j, parts[i].high, high);
        }
    }
}

__device__ __forceinline__ void multiply_step(Sums& sums, u32 tile, const Place& place)
{
    if constexpr (PARTS) {
        Sums own = {};
        multiply_parts(own, tile, place);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int q = 0; q < sizeof(SumFragment) / 4; ++q) sums.of[i][j][q] += own.of[i][j][q];
        return;
    }
#pragma unroll
    for (int k = 0; k < ATOMS; ++k) {
        u32 a[TM][4], b[TN / 2][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) read_a(a[i], tile, place, i, k);
#pragma unroll
        for (int j = 0; j < TN / 2; ++j) read_b(b[j], tile + BYTES_A, place, j, k);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN / 2; ++j) multiply_pair(sums.of[i] + 2 * j, a[i], b[j]);
            if constexpr (ZERO_B) MMA(sums.rows[i], a[i], ONES, ONES);
        }
    }
}
#endif
