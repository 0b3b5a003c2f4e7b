// The greater of each two of some 16-bit floats, which fill words; a NaN is greater than anything.
//
// Compile-time: KIND, the PTX name of the type as a string.

template <typename Words> __device__ __forceinline__ Words greater(const Words& a, const Words& b)
{
    Words found;
#pragma unroll
    for (int q = 0; q < sizeof(Words) / 4; ++q)
        asm("max.NaN." KIND "x2 %0, %1, %2;"
            : "=r"(((unsigned*)&found)[q])
            : "r"(((const unsigned*)&a)[q]), "r"(((const unsigned*)&b)[q]));
    return found;
}
