// The greater of eight pairs of 16-bit floats, which Eight are; a NaN is greater than anything.
//
// Compile-time: KIND, the PTX name of the type as a string.

template <typename Eight> __device__ __forceinline__ Eight greater(const Eight& a, const Eight& b)
{
    Eight found;
#pragma unroll
    for (int q = 0; q < 4; ++q)
        asm("max.NaN." KIND "x2 %0, %1, %2;"
            : "=r"(((unsigned*)&found)[q])
            : "r"(((const unsigned*)&a)[q]), "r"(((const unsigned*)&b)[q]));
    return found;
}
