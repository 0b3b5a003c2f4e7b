// Common to the float32 products on tensor cores: numbers that are split into two parts.
//
// Tensor cores multiply tf32, which has 11 bits of mantissa. A float32 number is the sum of two of those,
// high + low, with a relative error of 2^-22; and a product is high * high' + high * low' + low * high', with sums in
// float32. Tensor cores truncate their sums instead of rounding them. So a sum on tensor cores has at most
// 32 terms, its small products come first, and the CUDA cores add it to the total in float32.
//
// The constants `b` are split on the host, and are stored in the order of the tiles in shared memory:
// [batch][step][part][row], rows of 32 terms (128 bytes) in swizzled order, zeros past the last term.
// Infinities and NaNs in `a` are preserved; an infinity in `b` yields NaN where a number of `a` has
// no low part. Tensor cores treat a denormal part as zero, so that numbers below 2^-102 gradually lose
// the low part, and those below 2^-114 have none; numbers within a relative 2^-22 of the greatest one may
// be rounded to infinity.
//
// Compile-time: PARTS, 2, or 1 for plain tf32.

struct Parts {
    u32 high[4], cross[4], low[4];  // `cross` is `high` in the product with the other's low part
};

// Splits the numbers of a fragment into two parts. Infinities and NaNs must not be multiplied by a low part,
// which may be zero. The tensor cores ignore the lower 13 bits, so that adding half a unit of the last
// remaining bit rounds.
__device__ __forceinline__ void cut(Parts& parts, const u32 (&found)[4])
{
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float value = __uint_as_float(found[i]);
        const bool finite = fabsf(value) < INFINITY;
        if constexpr (PARTS == 1) {
            parts.high[i] = finite ? found[i] + 0x1000 : found[i];
        } else {
            parts.high[i] = found[i] & 0xffffe000;
            parts.cross[i] = finite ? parts.high[i] : 0;
            const float rest = value - __uint_as_float(parts.high[i]);
            parts.low[i] = finite ? __float_as_uint(rest) + 0x1000 : 0;
        }
    }
}
