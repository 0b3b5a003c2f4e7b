// Asynchronous copies to shared memory (cp.async), and the swizzled layout of tiles.
//
// Tiles in shared memory have rows of 128 bytes, eight chunks of 16. Chunk c of row r is stored at position
// c ^ (r % 8), so that eight rows of a column of chunks are in different banks; this is also the layout
// that wgmma calls the 128-byte swizzle.
//
// Compile-time: T, the elements' type.

typedef unsigned int u32;
constexpr int BK = 128 / sizeof(T);  // elements of a row

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 swizzled(int row, int chunk)
{
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

// Copies N elements to shared memory, or writes zeros where `inside` is false. Whole chunks that are read ONCE are
// displaced first in the second cache.
template <int N, bool ONCE = false> __device__ __forceinline__ void cp_async(u32 to, const T* from, bool inside)
{
    const int bytes = inside ? N * sizeof(T) : 0;
    if constexpr (N * sizeof(T) == 16 && ONCE)
        asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0; "
                     "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, policy; }"
                     :: "r"(to), "l"(from), "r"(bytes));
    else if constexpr (N * sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(to), "l"(from), "n"(N * sizeof(T)), "r"(bytes));
}

// Stores an element of two bytes, which is too small for cp.async.
__device__ __forceinline__ void keep_single(u32 to, unsigned short bits)
{
    asm volatile("st.shared.u16 [%0], %1;" :: "r"(to), "h"(bits) : "memory");
}

// Fills N bytes of shared memory with repetitions of the four bytes of `word`.
template <int N> __device__ __forceinline__ void fill(u32 to, u32 word)
{
    if constexpr (N == 16) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(to), "r"(word) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4)
            asm volatile("st.shared.u32 [%0], %1;" :: "r"(to + i), "r"(word) : "memory");
    }
}

// Has a value computed here: the compiler would rather do so behind the next wait, or in every step again.
__device__ __forceinline__ void pin(int& value) { asm volatile("mov.b32 %0, %0;" : "+r"(value)); }
__device__ __forceinline__ void pin(u32& value) { asm volatile("mov.b32 %0, %0;" : "+r"(value)); }
template <typename V> __device__ __forceinline__ void pin(const V*& value) { asm volatile("mov.b64 %0, %0;" : "+l"(value)); }

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the N newest groups of this thread have completed.
template <int N> __device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
