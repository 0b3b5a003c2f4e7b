// Functions called by the entries of the elementwise table.
#ifndef FUNCTIONS_CUH
#define FUNCTIONS_CUH

template <typename T> constexpr bool IS_FLOAT = T(0.5) != T(0);
template <> constexpr bool IS_FLOAT<bool> = false;

// The greater of x and 0, or NaN. In float32 it is one instruction, which makes 0 of -0.
template <typename T> __device__ __forceinline__ T positive(T x) { return x < T(0) ? T(0) : x; }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
template <> __device__ __forceinline__ float positive(float x)
{
    float found;
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(found) : "f"(x));
    return found;
}
#endif

// min(most, max(x, least)); NaN if one of them is.
template <typename T> __device__ __forceinline__ T limit(T x, T least, T most)
{
    x = least == T(0) ? positive(x) : x < least || least != least ? least : x;
    return x > most || most != most ? most : x;
}

// The same for numbers; NaN becomes the least value, as in every conversion that quantizes to integers.
template <typename T> __device__ __forceinline__ T saturated(T x, T least, T most)
{
    x = x > least ? x : least;
    return x > most ? most : x;
}

// x / y; of integers by 0, it is 0.
template <typename T> __device__ __forceinline__ T quotient_of(T x, T y)
{
    if constexpr (IS_FLOAT<T>) {
        return x / y;
    } else {
        return y == T(0) ? T(0) : x / y;
    }
}

// The remainder with the sign of x; of integers by 0, it is 0.
template <typename T> __device__ __forceinline__ T remainder_of(T x, T y)
{
    if constexpr (IS_FLOAT<T>) {
        return fmod(x, y);
    } else {
        return y == T(0) ? T(0) : x % y;
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

// x to the power of a float. Squares and roots, whose exponent the compiler mostly knows, take a hundredth of the time, and
// products of up to nine factors, whose error is at most that of `pow`, a tenth.
template <typename T> __device__ __forceinline__ T float_power(T x, T y)
{
    if (y == T(2)) return x * x;
    if (y == T(3)) return x * x * x;
    if (y == T(-1)) return T(1) / x;
    if (y == T(0.5) || y == T(-0.5)) {
        const T root = sqrt(isinf(x) ? fabs(x) : x + T(0));  // of -inf it is inf, and of -0 it is 0
        return y < T(0) ? T(1) / root : root;
    }
#pragma unroll
    for (int n = 4; n <= 9; ++n) {
        if (y != T(n)) continue;
        const T square = x * x, fourth = square * square;
        const T result = n < 8 ? fourth : fourth * fourth;
        return (n & 2 ? result * square : result) * (n & 1 ? x : T(1));
    }
    return pow(x, y);
}

// x to the power of y, in the type of x; exact for integers. Exponents that float does not have need double.
template <typename T, typename Y> __device__ __forceinline__ T power(T x, Y y)
{
    if constexpr (IS_FLOAT<T>) {
        if constexpr (sizeof(T) < 8 && (sizeof(Y) == 8 || (sizeof(Y) == 4 && !IS_FLOAT<Y>)))
            if (double(T(y)) != double(y)) return T(pow(double(x), double(y)));
        return float_power(x, T(y));
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

// 2 to the power of x, with a relative error of 2e-7; results below 1e-38 are 0.
__device__ __forceinline__ float quick_exp2(float x)
{
#ifdef __CUDA_ARCH__
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return exp2f(x);
#endif
}

__device__ __forceinline__ float quick_reciprocal(float x)
{
#ifdef __CUDA_ARCH__
    float found;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
#else
    return 1.0f / x;
#endif
}

// What is far from 0 takes long to reduce: a call, so that the code exists once.
__device__ __noinline__ float far_sine(float x) { return sinf(x); }
__device__ __noinline__ float far_cosine(float x) { return cosf(x); }

// The sine of x, or its cosine, with a relative error of 4e-6 but for 1e-7 near zeros: k pi is subtracted in three parts
// for a whole k, of a cosine one and a half, and a polynomial has the rest. NEAR: |x| is at most 65536. Where products
// store sines, the registers that a call might change take as long as the sines.
template <bool COSINE, bool NEAR> __device__ __forceinline__ float quick_wave(float x)
{
    if (!NEAR && fabsf(x) > 65536.0f) return COSINE ? far_cosine(x) : far_sine(x);
    constexpr float half = COSINE ? 0.5f : 0.0f;
    const float whole = rintf(fmaf(x, 0.3183098862f, -half)), k = whole + half;
    const float rest = fmaf(k, -1.509957991e-7f, fmaf(k, -9.675025939e-4f, fmaf(k, -3.140625f, x))), square = rest * rest;
    const float terms = fmaf(square, fmaf(square, fmaf(square, 2.7557314e-6f, -1.984127e-4f), 8.3333333e-3f), -0.16666667f);
    const float sine = fmaf(rest * square, terms, rest);
    return ((int)whole & 1) != COSINE ? -sine : sine;
}

__device__ __forceinline__ float quick_sin(float x) { return quick_wave<false, false>(x); }
__device__ __forceinline__ float quick_cos(float x) { return quick_wave<true, false>(x); }
__device__ __forceinline__ float near_sin(float x) { return quick_wave<false, true>(x); }
__device__ __forceinline__ float near_cos(float x) { return quick_wave<true, true>(x); }

// 1 / (1 + exp(-x)), with a relative error of 5e-7; results below 1e-38 are 0.
__device__ __forceinline__ float quick_sigmoid(float x)
{
    return quick_reciprocal(1.0f + quick_exp2(-1.4426950409f * x));
}

// x * (1 + tanh(u)) / 2 is x times the sigmoid of 2 u.
__device__ __forceinline__ float quick_gelu_tanh(float x)
{
    return x * quick_sigmoid(1.5957691216f * fmaf(0.044715f * x * x, x, x));
}

// x * tanh(log(1 + e)), e = exp(x), is x * w / (w + 2), w = e * (e + 2): only positive terms. From 20 on it is x.
__device__ __forceinline__ float quick_mish(float x)
{
    const float e = quick_exp2(1.4426950409f * fminf(x, 20.0f)), w = e * (e + 2.0f);
    return x * (w * quick_reciprocal(w + 2.0f));
}

// x times the normal distribution, with a relative error of 1.2e-4 up to |x| = 4, where the tail is 3e-5 (6e-4 at 5).
// The tail of the distribution beyond |x| is 2 to the power of a polynomial (fitted up to 5; it vanishes from 8 on).
// Beside x one number is alive at a time, so that several of these run side by side where sums take most registers.
__device__ __forceinline__ float quick_gelu(float x)
{
    const float size = fabsf(x);
    float power = fmaf(-2.9058487e-4f, size, 5.5262580e-3f);
    power = fmaf(power, size, -4.7189581e-2f);
    power = fmaf(power, size, -4.6558677e-1f);
    power = fmaf(power, size, -1.1484722f);
    power = fmaf(power, size, -1.0001735f);
    return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - quick_exp2(power));
}

// The same as precisely as by erf, whose two formulas take twice the time: the polynomial is wrong by 8e-9 of x at most,
// and so is the tail beyond its range.
__device__ __forceinline__ float gelu_of(float x)
{
    const float size = fabsf(x);
    float power = fmaf(-2.8349159e-6f, size, 3.9377715e-5f);
    power = fmaf(power, size, -1.8618028e-4f);
    power = fmaf(power, size, -1.3693694e-4f);
    power = fmaf(power, size, 7.0634200e-3f);
    power = fmaf(power, size, -5.2496180e-2f);
    power = fmaf(power, size, -4.5920819e-1f);
    power = fmaf(power, size, -1.1511052f);
    power = fmaf(power, size, -1.0f);
    return x * fabsf((x > 0.0f ? 1.0f : 0.0f) - quick_exp2(power));
}

__device__ __forceinline__ double gelu_of(double x) { return 0.5 * x * (1.0 + erf(x * 0.7071067811865476)); }

// A shift by the width of T or more yields 0, or the sign.
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
