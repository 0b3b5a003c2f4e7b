// Elements in memory by which the blocks of a cooperative launch, which run all at once, tell one another results: one is there as
// soon as its bits are not all set. That is a NaN, which is never stored.

struct alignas(16) GridWord {
    u32 at[4];
};

// Reads elements that other blocks may be writing.
__device__ __forceinline__ GridWord shared_word(const void* from)
{
    GridWord found;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.at[0]), "=r"(found.at[1]), "=r"(found.at[2]), "=r"(found.at[3]) : "l"(from) : "memory");
    return found;
}

// What a thread does between reading elements that were not there and reading them again: blocks run side by side.
__device__ __forceinline__ void let_others_go_on() {}

// Writes the bits of an element, of 16 or 32 bits.
__device__ __forceinline__ void share(unsigned short* to, unsigned short bits)
{
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" :: "l"(to), "h"(bits) : "memory");
}
__device__ __forceinline__ void share(u32* to, u32 bits)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(to), "r"(bits) : "memory");
}

// Orders what this thread has written and read before what it will, for other blocks.
__device__ __forceinline__ void grid_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Whether elements of BYTES each are all there.
template <int BYTES> __device__ __forceinline__ bool are_there(const GridWord& word)
{
    u32 missing = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 rest = ~word.at[i];  // has an element that is 0
        missing |= BYTES == 4 ? u32(rest == 0) : (rest - 0x00010001) & ~rest & 0x80008000;
    }
    return missing == 0;
}
