// The rows of `a` of one step in registers, as two float16 numbers each, and their products with a tile of `b`.
//
// A number is high + low, each rounded to nearest: 22 bits and a sign, nearly those of float32. A product is
// high * high' + high * low' + low * high', with sums in float32. float16 has a small range, so every row of a step
// of 32 terms is multiplied by a power of two that brings its greatest number to 2^14 or a little more; numbers down
// to 2^-17 of it keep all bits, and smaller ones are wrong by 2^-40 of it. The sums of a step are multiplied by the
// inverse as they are added to the totals, in float32. Tensor cores truncate their sums instead of rounding them; so
// the small products come first, while the sums are small, and sums of 32 terms are as long as they get.
//
// The constants `b` are scaled likewise, each row by one power of two (`f16x3.py`), which the epilogue takes out. They
// are stored in the order of the tiles in shared memory: [batch][step][row], rows of 32 high parts and 32 low parts
// (128 bytes) in swizzled order, zeros past the last term. Of every sixteen terms, 4 i + j has position
// 8 (i / 2) + 2 j + i % 2, because ldmatrix reads float32 with these terms in one thread.
//
// Infinities of `a` are low parts, whose high parts are the greatest float16 number: they are multiplied once, by high
// parts of `b`, of which none is zero unless the number is.
//
// Exponents are computed for two rows at once, as the upper halves of float32: eight bits of exponent and seven others.

constexpr int TILES_B = 1, SIXTEENS = BK / 16;
constexpr bool IN_STEPS = true;
constexpr u32 BOTH = 0x10001;                   // repeats a number for two rows
constexpr u32 EXPONENT = 1 << 7;                // one, as the exponent in the upper half of a float32
constexpr u32 ONE = 2 * 127 * EXPONENT;         // sum of the exponents of a number and its inverse
constexpr u32 SCALED = ONE + 14 * EXPONENT;     // sum of the exponents of a row and its factor
constexpr u32 LOWEST = SCALED - ONE + EXPONENT; // exponent of a row whose factor has a normal inverse

#if FACTORS
// What multiplies the terms of a step in the rows of a thread: the same in both, or, with IMAGES of 2, in each its own.
struct Factors {
    float at[2 * SIXTEENS][IMAGES][2];

    // From those of its first term on, of which `left` are left.
    __device__ __forceinline__ void load(const float* const (&from)[IMAGES], int left)
    {
#pragma unroll
        for (int k = 0; k < 2 * SIXTEENS; ++k)
#pragma unroll
            for (int row = 0; row < IMAGES; ++row)
#pragma unroll
                for (int i = 0; i < 2; ++i) at[k][row][i] = k * 8 + i * 4 < left ? from[row][k * 8 + i * 4] : 0;
    }
    __device__ __forceinline__ void apply(u32 (&found)[2 * SIXTEENS][4]) const
    {
#pragma unroll
        for (int k = 0; k < 2 * SIXTEENS; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                found[k][i] = __float_as_uint(__uint_as_float(found[k][i]) * at[k][i % IMAGES][i / 2]);
    }
};
#else
struct Factors {
    __device__ __forceinline__ void apply(u32 (&)[2 * SIXTEENS][4]) const {}
};
#endif

struct Rows {
    u32 high[SIXTEENS][4], low[SIXTEENS][4];
    float inverse[2];  // of the factors of a thread's rows, times LESS

    __device__ __forceinline__ void read(u32 tile, u32 place, const Factors& factors)
    {
        u32 found[2 * SIXTEENS][4];  // of rows lane / 4, and eight rows further, in turn
#pragma unroll
        for (int k = 0; k < 2 * SIXTEENS; ++k)
            ldmatrix_x4(found[k], (tile + place) ^ (k << 5));
        factors.apply(found);
        float greatest[2] = {};
#pragma unroll
        for (int k = 0; k < 2 * SIXTEENS; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                greatest[i % 2] = max_or_nan(greatest[i % 2], fabsf(__uint_as_float(found[k][i])));
        u32 both = __byte_perm(__float_as_uint(greatest[0]), __float_as_uint(greatest[1]), 0x7632);
        both = __vmaxu2(both, __shfl_xor_sync(~0u, both, 1));
        both = __vmaxu2(both, __shfl_xor_sync(~0u, both, 2));
        const u32 scales = SCALED * BOTH - __vmaxu2(both & 0x7f80 * BOTH, LOWEST * BOTH);
        const u32 inverses = ONE * BOTH - scales;
        const float scale[2] = {__uint_as_float(scales << 16), __uint_as_float(scales & 0xffff0000)};
        inverse[0] = __uint_as_float(inverses << 16) * LESS;
        inverse[1] = __uint_as_float(inverses & 0xffff0000) * LESS;
        cut(found, scale);
    }

    __device__ __forceinline__ void cut(const u32 (&found)[2 * SIXTEENS][4], const float (&scale)[2])
    {
#pragma unroll
        for (int k = 0; k < SIXTEENS; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 (&from)[4] = found[2 * k + i / 2];
                const float x = __uint_as_float(from[i % 2]) * scale[i % 2];
                const float y = __uint_as_float(from[2 + i % 2]) * scale[i % 2];
                high[k][i] = pair_of_finite(x, y);
                const float2 rounded = halves_of(high[k][i]);
                low[k][i] = pair_of(x - rounded.x, y - rounded.y);
            }
    }

    // Issues the products of a step, the small ones first.
    __device__ __forceinline__ void multiply(float (&sums)[TN][4], u32 tile_b, bool) const
    {
        const uint64 b = smem_descriptor(tile_b);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < SIXTEENS; ++k) {
            wgmma(sums, low[k], b + k * 2, k > 0);
            wgmma(sums, high[k], b + (SIXTEENS + k) * 2, true);
        }
#pragma unroll
        for (int k = 0; k < SIXTEENS; ++k) wgmma(sums, high[k], b + k * 2, true);
        wgmma_commit();
    }

    __device__ __forceinline__ void read_and_multiply(float (&sums)[TN][4], u32 tile, u32 place, bool add,
                                                      const Factors& factors)
    {
        read(tile, place, factors);
        multiply(sums, tile + BYTES_A, add);
    }

    __device__ __forceinline__ void add_to(float (&totals)[TN][4], const float (&sums)[TN][4]) const
    {
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q] * inverse[q / 2];
    }
};
