// float32 as two float16 numbers, high + low, each rounded to nearest: 22 bits and a sign, nearly those of float32. A
// product is high * high' + high * low' + low * high', with sums in float32. float16 has a small range, so numbers of a
// row are multiplied by a power of two that brings the greatest finite one to 2^14 or a little more; numbers down to
// 2^-17 of it keep all bits, and smaller ones are wrong by 2^-39 of it. Infinities and NaNs are low parts, whose high
// parts are zero: they are multiplied once, by high parts.

constexpr float LESS = 1.0f / (1 << 22);  // keeps totals from overflowing before results do; see f16x3.py

// The scale of a row whose greatest number has these bits.
struct RowScale {
    static constexpr int EXPONENT = 23;
    static constexpr u32 INFINITE = 255u << EXPONENT;
    static constexpr u32 ONE = 254u << EXPONENT;             // sum of the exponents of a number and its inverse
    static constexpr u32 SUM = ONE + (14u << EXPONENT);      // sum of the exponents of a row and its scale
    static constexpr u32 LOWEST = SUM - ONE + (1u << EXPONENT);  // exponent of a row whose scale has a normal inverse
    float scale, inverse;

    __device__ __forceinline__ explicit RowScale(u32 greatest)
    {
        const u32 found = greatest & INFINITE, bits = SUM - (found > LOWEST ? found : LOWEST);
        scale = __uint_as_float(bits);
        inverse = __uint_as_float(ONE - bits);
    }
};

// Two scaled numbers as pairs of high and low parts.
struct Halves {
    u32 high, low;

    __device__ __forceinline__ Halves(float x, float y) : Halves(x, y, x, y) {}

    // `x_high` and `y_high` are what high parts are rounded from.
    __device__ __forceinline__ Halves(float x, float y, float x_high, float y_high) : high(pair_of(x_high, y_high))
    {
        const float2 rounded = halves_of(high);
        low = pair_of(x - rounded.x, y - rounded.y);
    }
};

__device__ __forceinline__ float finite_or_zero(float x) { return fabsf(x) < INFINITY ? x : 0.0f; }

