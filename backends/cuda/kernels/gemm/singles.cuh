// Elements of two bytes on their way to shared memory, which are too small for cp.async: all are loaded before one is
// stored.

template <int COUNT> struct Singles {
    u32 to[COUNT];
    unsigned short found[COUNT];

    __device__ __forceinline__ void load(int i, u32 target, const void* from, bool inside)
    {
        to[i] = target;
        found[i] = inside ? *(const unsigned short*)from : (unsigned short)0;
    }

    __device__ __forceinline__ void store() const
    {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) keep_single(to[i], found[i]);
    }
};
