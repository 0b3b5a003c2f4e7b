// The right matrix of a product: rows of `ldb` elements, one for each column of results; or numbers split into parts,
// see tf32x3.cuh, as [step][part][ldb] rows of a step.
//
// Compile-time: U; BN; PARTS, 0 where elements are stored unsplit; THREADS, all of which copy.

// Copies a step of BN rows from n0 on, eight chunks of each, and zeros past the last row.
__device__ __forceinline__ void copy_b(u32 tile, const U* b, int step, int n0, int n, int ldb)
{
    constexpr int CHUNK = 16 / sizeof(U), COPIES = (BN * 8 + THREADS - 1) / THREADS;
    constexpr bool EVEN = BN * 8 % THREADS == 0;
    if constexpr (PARTS) {
        const int rows = min(BN, ldb - n0);
        b += (long long)step * PARTS * ldb * BK + n0 * BK;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                const int item = threadIdx.x + i * THREADS, row = item / 8, chunk = item % 8;
                if (!EVEN && item >= BN * 8) break;
                const U* from = b + row % rows * BK + chunk * CHUNK;
                cp_async<CHUNK>(tile + part * BYTES_B + item * 16, (const T*)from, row < rows);
            }
            b += (long long)ldb * BK;
        }
    } else {
        const int k0 = step * BK;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int item = threadIdx.x + i * THREADS, row = item / 8, chunk = item % 8;
            if (!EVEN && item >= BN * 8) break;
            const bool inside = n0 + row < n && k0 + chunk * CHUNK < ldb;
            const long long at = (long long)(n0 + row) * ldb + k0 + chunk * CHUNK;
            cp_async<CHUNK>(tile + swizzled(row, chunk), (const T*)b + (inside ? at : 0), inside);
        }
    }
}
