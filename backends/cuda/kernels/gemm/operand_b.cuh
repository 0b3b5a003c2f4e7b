// The right matrix of a product, which lies in rows of `ldb` elements, one for each column of results.
//
// Compile-time: BN; THREADS, all of which copy.

// Copies what a step wants of BN rows from n0 on, eight chunks of each, zeros behind the last.
template <typename U>
__device__ __forceinline__ void copy_b(u32 tile, const U* b, int k0, int n0, int n, int ldb)
{
    constexpr int EACH = 16 / sizeof(U), COPIES = (BN * 8 + THREADS - 1) / THREADS;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const int item = threadIdx.x + i * THREADS;
        if (BN * 8 % THREADS && item >= BN * 8) break;
        const int row = item / 8, chunk = item % 8;
        const bool inside = n0 + row < n && k0 + chunk * EACH < ldb;
        const long long at = (long long)(n0 + row) * ldb + k0 + chunk * EACH;
        cp_async<EACH>(tile + swizzled(row, chunk), (const T*)b + (inside ? at : 0), inside);
    }
}
