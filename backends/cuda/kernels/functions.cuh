// Functions that the rows of the elementwise table use.
#ifndef FUNCTIONS_CUH
#define FUNCTIONS_CUH

template <typename T> constexpr bool IS_FLOAT = T(0.5) != T(0);
template <> constexpr bool IS_FLOAT<bool> = false;

template <typename T> __device__ __forceinline__ T limit(T x, T least, T most)
{
    x = x < least ? least : x;
    return x > most ? most : x;
}

// The remainder with the sign of x.
template <typename T> __device__ __forceinline__ T remainder_of(T x, T y)
{
    if constexpr (IS_FLOAT<T>) {
        return fmod(x, y);
    } else {
        return x % y;
    }
}

// The remainder with the sign of y, also where it is 0.
template <typename T> __device__ __forceinline__ T floored_remainder(T x, T y)
{
    const T rest = remainder_of(x, y);
    if constexpr (IS_FLOAT<T>) {
        if (rest == T(0)) return copysign(T(0), y);
    }
    return rest != T(0) && (rest < T(0)) != (y < T(0)) ? rest + y : rest;
}

// x to the power of y, in the type of x; exact for integers.
template <typename T, typename Y> __device__ __forceinline__ T power(T x, Y y)
{
    if constexpr (IS_FLOAT<T>) {
        return pow(x, T(y));
    } else if constexpr (IS_FLOAT<Y>) {
        return T(pow(double(x), double(y)));
    } else {
        if (y < Y(0)) return x == T(1) ? T(1) : x + T(1) == T(0) ? (y & 1 ? x : T(1)) : T(0);
        T result = 1;
        for (unsigned long long rest = y; rest; rest >>= 1) {
            if (rest & 1) result *= x;
            x *= x;
        }
        return result;
    }
}

// x times the normal distribution, to 2e-7 of its greatest slope: with z = |x| / sqrt(2), the tail
// 1 - erf(z) is exp(-z^2) times a polynomial of 1 / (1 + 0.3275911 z) (Abramowitz and Stegun 7.1.26).
__device__ __forceinline__ float quick_gelu(float x)
{
    const float size = fminf(fabsf(x), 30.0f), t = __fdividef(1.0f, fmaf(0.23164189f, size, 1.0f));
    float tail = fmaf(0.5307027145f, t, -0.7265760135f);
    tail = fmaf(tail, t, 0.7107068705f);
    tail = fmaf(tail, t, -0.142248368f);
    tail = fmaf(tail, t, 0.127414796f) * t;
    return fmaxf(x, 0.0f) - size * tail * __expf(-0.5f * x * x);
}

// Shifts by the width of T or more leave 0, or the sign.
template <typename T> __device__ __forceinline__ T shift_left(T x, T y)
{
    return (unsigned long long)y < 8 * sizeof(T) ? T((unsigned long long)x << y) : T(0);
}
template <typename T> __device__ __forceinline__ T shift_right(T x, T y)
{
    return (unsigned long long)y < 8 * sizeof(T) ? T(x >> y) : x < T(0) ? T(-1) : T(0);
}

// A float as an unsigned integer of 64 bits; negative ones wrap around.
template <typename X> __device__ __forceinline__ uint64 to_uint64(X x)
{
    return x < X(0) ? uint64(int64(x)) : uint64(x);
}

#endif
