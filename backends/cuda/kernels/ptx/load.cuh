// Loads of 16 or 8 bytes into registers that the compiler does not move across the wait for the preceding kernel
// (griddepcontrol.wait).

struct alignas(16) Word {
    unsigned int at[4];
};

struct alignas(8) ShortWord {
    unsigned int at[2];
};

// Reads data that never changes and is read once, or returns zeros where `inside` is false. Loads of constants
// (ld.global.nc) would not stay before the wait: ptxas moves them after it.
__device__ __forceinline__ Word constant_word(const void* from, bool inside = true)
{
    Word found;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; "
                 "mov.b32 %3, 0; @p ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(found.at[0]), "=&r"(found.at[1]), "=&r"(found.at[2]), "=&r"(found.at[3])
                 : "l"(from), "r"(int(inside)));
    return found;
}

// Reads data that the preceding kernel may have written, or returns zeros where `inside` is false.
__device__ __forceinline__ Word global_word(const void* from, bool inside = true)
{
    Word found;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; "
                 "mov.b32 %3, 0; @p ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
                 : "=&r"(found.at[0]), "=&r"(found.at[1]), "=&r"(found.at[2]), "=&r"(found.at[3])
                 : "l"(from), "r"(int(inside))
                 : "memory");
    return found;
}

// The same of 8 bytes.
__device__ __forceinline__ ShortWord constant_short(const void* from, bool inside = true)
{
    ShortWord found;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                 "@p ld.global.L1::no_allocate.L2::128B.v2.b32 {%0, %1}, [%2]; }"
                 : "=&r"(found.at[0]), "=&r"(found.at[1])
                 : "l"(from), "r"(int(inside)));
    return found;
}
__device__ __forceinline__ ShortWord global_short(const void* from, bool inside = true)
{
    ShortWord found;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
                 "@p ld.global.v2.b32 {%0, %1}, [%2]; }"
                 : "=&r"(found.at[0]), "=&r"(found.at[1])
                 : "l"(from), "r"(int(inside))
                 : "memory");
    return found;
}

// Brings what is at an address to the second cache; the preceding kernel may still write there.
__device__ __forceinline__ void prefetch_l2(const void* from)
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(from));
}
