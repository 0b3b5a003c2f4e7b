// Element types of less than 16 bits. Each is stored in a byte; arithmetic is done in float (or
// int). Numbers round to nearest, ties to even.

enum Special {
    IEEE,         // infinities and NaN as usual
    FINITE,       // no infinities; NaN has all bits set
    UNSIGNED_0,   // no infinities and no -0, whose encoding is NaN
    NUMBERS_ONLY  // neither infinities nor NaN
};

// A sign, E bits of exponent with this bias, and M bits of mantissa.
template <int E, int M, int BIAS, Special SPECIAL>
struct SmallFloat {
    static constexpr int SIGN = 1 << (E + M);
    static constexpr int LEAST = 1 - BIAS;  // exponent of the smallest normal number
    static constexpr int ALL = SIGN - 1;    // exponent and mantissa
    static constexpr int INFINITE = ((1 << E) - 1) << M;
    static constexpr int GREATEST = SPECIAL == IEEE ? INFINITE - 1 : ALL - (SPECIAL == FINITE);
    static constexpr int NOT_A_NUMBER = SPECIAL == IEEE     ? INFINITE + (1 << M) / 2
                                        : SPECIAL == FINITE ? ALL
                                                            : SIGN;
    uint8 bits;

    SmallFloat() = default;
    __device__ __forceinline__ explicit SmallFloat(float x) : bits(encoded(x, false)) {}

    // Out-of-range numbers saturate to the greatest number, not to infinity or NaN.
    static __device__ __forceinline__ SmallFloat saturated(float x)
    {
        SmallFloat found;
        found.bits = encoded(x, true);
        return found;
    }

    __device__ __forceinline__ operator float() const
    {
        const int code = bits & ALL, exponent = code >> M, mantissa = code & ((1 << M) - 1);
        if (SPECIAL == UNSIGNED_0 && bits == SIGN) return NAN;
        if (SPECIAL == FINITE && code == ALL) return NAN;
        float x = exponent ? ldexpf(mantissa + (1 << M), exponent - 1 + LEAST - M)
                           : ldexpf(mantissa, LEAST - M);
        if (SPECIAL == IEEE && code >= INFINITE) x = code == INFINITE ? INFINITY : NAN;
        return bits & SIGN ? -x : x;
    }

    static __device__ __forceinline__ uint8 encoded(float x, bool saturate)
    {
        const int word = __float_as_int(x), sign = word < 0 ? SIGN : 0;
        if (x != x) return SPECIAL == UNSIGNED_0 ? NOT_A_NUMBER : sign | NOT_A_NUMBER;
        const float size = fabsf(x);
        int code = GREATEST + 1;
        if (size < INFINITY) {
            const int exponent = max((word >> 23 & 0xff) - 127, LEAST);
            code = ((exponent - LEAST) << M) + (int)rintf(ldexpf(size, M - exponent));
        }
        if (code > GREATEST) {
            const int outside = SPECIAL == IEEE ? INFINITE : NOT_A_NUMBER;
            if (!saturate && SPECIAL == UNSIGNED_0) return NOT_A_NUMBER;
            code = saturate || SPECIAL == NUMBERS_ONLY ? GREATEST : outside;
        }
        return SPECIAL == UNSIGNED_0 && code == 0 ? 0 : sign | code;
    }
};

using Float8e4m3fn = SmallFloat<4, 3, 7, FINITE>;
using Float8e4m3fnuz = SmallFloat<4, 3, 8, UNSIGNED_0>;
using Float8e5m2 = SmallFloat<5, 2, 15, IEEE>;
using Float8e5m2fnuz = SmallFloat<5, 2, 16, UNSIGNED_0>;
using Float4e2m1 = SmallFloat<2, 1, 1, NUMBERS_ONLY>;

// A power of two: only an exponent, 255 being NaN.
struct Float8e8m0 {
    uint8 bits;

    enum Rounding { DOWN, NEAREST, UP };

    Float8e8m0() = default;
    __device__ __forceinline__ explicit Float8e8m0(float x) : bits(encoded<NEAREST>(x, false)) {}

    template <Rounding ROUNDING>
    static __device__ __forceinline__ Float8e8m0 rounded(float x, bool saturate)
    {
        Float8e8m0 found;
        found.bits = encoded<ROUNDING>(x, saturate);
        return found;
    }

    __device__ __forceinline__ operator float() const
    {
        return bits == 255 ? NAN : ldexpf(1.0f, bits - 127);
    }

    template <Rounding ROUNDING>
    static __device__ __forceinline__ uint8 encoded(float x, bool saturate)
    {
        const int word = __float_as_int(x), exponent = word >> 23 & 0xff, rest = word & 0x7fffff;
        if (exponent == 255) return saturate && rest == 0 ? 254 : 255;
        const bool more = ROUNDING == UP        ? rest > 0
                          : ROUNDING == NEAREST ? rest > 0x400000 || (rest == 0x400000 && exponent)
                                                : false;
        return min(exponent + more, saturate ? 254 : 255);
    }
};

// An integer of BITS bits in one byte; the other bits are ignored when it is read, and hold
// the sign or zero extension of the number when it is written.
template <int BITS, bool SIGNED>
struct SmallInt {
    int8 bits;

    static __device__ __forceinline__ int extended(int x)
    {
        return SIGNED ? int(unsigned(x) << (32 - BITS)) >> (32 - BITS) : x & ((1 << BITS) - 1);
    }

    SmallInt() = default;
    __device__ __forceinline__ explicit SmallInt(int x) : bits(extended(x)) {}
    __device__ __forceinline__ operator int() const { return extended(bits); }
};

using Int4 = SmallInt<4, true>;
using Uint4 = SmallInt<4, false>;
using Int2 = SmallInt<2, true>;
using Uint2 = SmallInt<2, false>;
