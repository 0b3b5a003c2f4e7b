// Warp fragments: loads of the operands of mma.sync (ldmatrix), and conversions to and from them.
//
// Compile-time: KIND, the PTX name of the multiplied type as a string.

// Reads four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(u32 (&found)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address));
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&found)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address));
}

// An 8x8 matrix, of whose row l / 4 lane l has an adjacent pair, transposed.
__device__ __forceinline__ u32 transposed(u32 pair)
{
    u32 found;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(found) : "r"(pair));
    return found;
}

// Two numbers, rounded, as an adjacent pair; the first one has the lower address.
__device__ __forceinline__ u32 pair_of(float first, float second)
{
    u32 found;
    asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
    return found;
}

// The same, with the greatest number instead of an infinity.
__device__ __forceinline__ u32 pair_of_finite(float first, float second)
{
    u32 found;
    asm("cvt.rn.satfinite." KIND "x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
    return found;
}

// a * b + c of both elements of a pair, each rounded once.
__device__ __forceinline__ u32 pair_fma(u32 a, u32 b, u32 c)
{
    u32 found;
    asm("fma.rn." KIND "x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
    return found;
}

// The lower or the upper half of a word twice, in words that ptxas knows: it multiplies pairs by it without having it made.
__device__ __forceinline__ u32 twice(u32 word, bool upper)
{
    u32 found;
    if (upper) asm("{ .reg .b16 l, u; mov.b32 {l, u}, %1; mov.b32 %0, {u, u}; }" : "=r"(found) : "r"(word));
    else asm("{ .reg .b16 l, u; mov.b32 {l, u}, %1; mov.b32 %0, {l, l}; }" : "=r"(found) : "r"(word));
    return found;
}

// bits & mask | more, as one instruction.
__device__ __forceinline__ u32 and_or(u32 bits, u32 mask, u32 more)
{
    u32 found;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(bits), "r"(mask), "r"(more));
    return found;
}

// The greater number, or NaN if one is.
__device__ __forceinline__ float max_or_nan(float a, float b)
{
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// 2 to the power of x.
__device__ __forceinline__ float exp2_of(float x)
{
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
    return found;
}

__device__ __forceinline__ float2 halves_of(u32 pair)
{
    float2 found;
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(found.x), "=f"(found.y) : "r"(pair));
    return found;
}
