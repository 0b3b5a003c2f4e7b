// What tensor-core kernels are made of, as PTX: copies that run beside the arithmetic, fragments,
// products, and blocks that share their memory.
//
// Tiles in shared memory have rows of 128 bytes, eight chunks of 16. Chunk c of row r lies at place
// c ^ (r % 8), so that eight rows of a column of chunks lie in different banks; that is also the order
// that wgmma calls the 128-byte swizzle.
//
// Compile-time: T, the elements' type; KIND, the PTX name as a string of what is multiplied.

typedef unsigned int u32;
constexpr int BK = 128 / sizeof(T);  // elements of a row

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 swizzled(int row, int chunk)
{
    return row * 128 + ((chunk ^ (row & 7)) << 4);
}

// ── copies ──────────────────────────────────────────────────────────────────────────────────────

// Copies N elements to shared memory, or writes zeros where `inside` is false.
template <int N> __device__ __forceinline__ void copy_async(u32 to, const T* from, bool inside)
{
    const int bytes = inside ? N * sizeof(T) : 0;
    if constexpr (N * sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(bytes));
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(to), "l"(from), "n"(N * sizeof(T)), "r"(bytes));
}

// Writes N bytes to shared memory, the four of `word` again and again.
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

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the N newest groups of this thread have arrived.
template <int N> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

// ── products of one warp ────────────────────────────────────────────────────────────────────────

// Reads four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void fragments(u32 (&found)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address));
}

// The same, each matrix transposed.
__device__ __forceinline__ void fragments_across(u32 (&found)[4], u32 address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found[0]), "=r"(found[1]), "=r"(found[2]), "=r"(found[3])
                 : "r"(address));
}

// Two numbers, rounded, as neighbours; the first one has the lower place.
__device__ __forceinline__ u32 pair_of(float first, float second)
{
    u32 found;
    asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(found) : "f"(second), "f"(first));
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

// ── Hopper ──────────────────────────────────────────────────────────────────────────────────────

// A tile of 128-byte rows in swizzled order, as wgmma wants it described.
__device__ __forceinline__ uint64 described(u32 address)
{
    return (uint64)((address & 0x3FFFF) >> 4) | (uint64)1 << 16 | (uint64)(1024 >> 4) << 32
           | (uint64)1 << 62;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N> __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

// Says that sums of wgmma are used from here on, not before: to be called behind `products_wait`.
__device__ __forceinline__ void settle(float& sum) { asm volatile("" : "+f"(sum) :: "memory"); }
__device__ __forceinline__ void settle(int& sum) { asm volatile("" : "+r"(sum) :: "memory"); }
__device__ __forceinline__ void settle(u32& sum) { asm volatile("" : "+r"(sum) :: "memory"); }

template <typename S, int COUNT> __device__ __forceinline__ void settle(S (&sums)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; ++i) settle(sums[i]);
}

// Makes what this thread wrote to shared memory visible to wgmma.
__device__ __forceinline__ void show_to_products()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Waits for all blocks of the cluster.
__device__ __forceinline__ void cluster_wait()
{
    __syncwarp();  // the barrier counts warps whose threads arrive together
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Reads four floats of another block of the cluster, at the place of `address` in its memory.
__device__ __forceinline__ float4 read_of(u32 address, int block)
{
    u32 there;
    float4 found;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
                 : "r"(there) : "memory");
    return found;
}
