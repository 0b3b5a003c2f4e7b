// Sort keys of elements: unsigned integers; the element that comes first has the greatest key. NaN is the greatest
// element. T is the type of the elements, A that of comparisons.
//
// Compile-time: LARGEST.

#pragma once

template <int SIZE> struct Bits;
template <> struct Bits<4> { using Key = unsigned; };
template <> struct Bits<8> { using Key = unsigned long long; };
using Key = Bits<sizeof(A)>::Key;
constexpr Key TOP = Key(1) << (8 * sizeof(Key) - 1);
constexpr bool IS_SIGNED = A(-1) < A(0), IS_FLOAT = A(1) / A(2) != A(0);

__device__ __forceinline__ Key bits_of(float x) { return __float_as_uint(x); }
__device__ __forceinline__ Key bits_of(double x) { return __double_as_longlong(x); }
template <typename I> __device__ __forceinline__ Key bits_of(I x) { return Key(x); }

__device__ __forceinline__ Key key_of(A x)
{
    Key key = bits_of(A(x + A(0)));  // -0 becomes 0, which is equal to it
    if (IS_FLOAT) key ^= (key & TOP ? ~Key(0) : Key(0)) | TOP;
    else if (IS_SIGNED) key ^= TOP;
    if (IS_FLOAT && x != x) key = ~Key(0);
    return LARGEST ? key : ~key;
}
