// What the float32 products on tensor cores share: numbers that are cut in two.
//
// Tensor cores take tf32, which has 11 bits of mantissa. A float32 number is the sum of two of those,
// high + low, up to 2^-22 of it; and a product is high * high' + high * low' + low * high', with sums in
// float32. What the tensor cores add they do not round but cut off. So a sum of tensor cores is at most
// 32 terms long, its small products come first, and the float32 units add it to the total.
//
// The constants `b` are cut in two on the host, and lie in memory as they come to lie in shared memory:
// [batch][step][part][row], rows of 32 terms (128 bytes) in swizzled order, zeros behind the last term.
// Infinities and NaNs in `a` stay what they are; an infinity in `b` gives NaN where a number of `a` has
// no low part. Tensor cores take a denormal part as zero, so that of numbers below 2^-102 less and less
// of the low part counts, and of those below 2^-114 none; numbers within 2^-22 of the greatest one may
// be rounded to infinity.
//
// Compile-time: PARTS, 2, or 1 for plain tf32.

struct Parts {
    u32 high[4], cross[4], low[4];  // `cross` is `high` in the product with the other's low part
};

// Cuts the numbers of a fragment in two. Products with infinities and NaNs must not meet a low part,
// which may be zero. The tensor cores ignore the lower 13 bits, so that adding half of what they stand
// for rounds.
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
