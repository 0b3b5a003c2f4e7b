// The right matrix of a product: rows of `ldb` elements, one for each column of results; with ACROSS, rows of
// `ldb` elements, one for each term; or numbers split into parts, see tf32x3.cuh, as [step][part][ldb] rows of a step.
//
// Compile-time: U; BN; PARTS, 0 where elements are stored unsplit; ACROSS; VECTOR_B, the elements per copy where they
// are stored unsplit; THREADS, all of which copy.

// Columns of a strip of a tile of ACROSS: BK rows of them, in swizzled order.
constexpr int STRIP = BN % 64 == 0 ? 64 : BN % 32 == 0 ? 32 : 16;
constexpr int STRIP_BYTES = BK * STRIP * sizeof(T);

// The position of an element of such a tile.
__device__ __forceinline__ u32 place_across(int k, int column)
{
    constexpr u32 CHUNKS = STRIP * sizeof(T) / 16;
    const u32 at = (k * STRIP + column % STRIP) * sizeof(T);
    return column / STRIP * STRIP_BYTES + (at ^ (at >> 7 & (CHUNKS - 1)) << 4);
}

// Copies a step of BK rows of BN columns from n0 on, and zeros past the last row and column.
__device__ __forceinline__ void copy_b_across(u32 tile, const U* b, int step, int n0, int n, int k, int ldb)
{
    constexpr int PER_ROW = BN / VECTOR_B, COPIES = (BK * PER_ROW + THREADS - 1) / THREADS;
    static_assert(BK * PER_ROW % THREADS == 0, "every thread copies alike");
    constexpr bool SINGLE = VECTOR_B * sizeof(T) < 4;
    Singles<SINGLE ? COPIES : 1> singles;
#pragma unroll
    for (int i = 0; i < COPIES; ++i) {
        const int item = threadIdx.x + i * THREADS, row = item / PER_ROW, column = item % PER_ROW * VECTOR_B;
        const bool inside = step * BK + row < k && n0 + column < n;
        const T* from = (const T*)b + (long long)(step * BK + row) * ldb + n0 + column;
        const u32 to = tile + place_across(row, column);
        if constexpr (SINGLE) singles.load(i, to, from, inside);
        else cp_async<VECTOR_B>(to, from, inside);
    }
    if constexpr (SINGLE) singles.store();
}

// Copies a step of BN rows in parts from n0 on, eight chunks of each, and zeros past the last row.
__device__ __forceinline__ void copy_parts(u32 tile, const U* b, int step, int n0, int ldb)
{
    constexpr int CHUNK = 16 / sizeof(U), COPIES = (BN * 8 + THREADS - 1) / THREADS;
    constexpr bool EVEN = BN * 8 % THREADS == 0;
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
}

// Copies steps of BN unsplit rows from n0 on, eight chunks of each, and zeros past the last row and the last chunk with
// a term: what follows in memory may be NaN. The addresses of its rows are computed before the preceding kernel has ended.
struct LoaderB {
    static constexpr int CHUNK = 16 / sizeof(U), PER_COPY = THREADS / 8, COPIES = (BN + PER_COPY - 1) / PER_COPY;
    const U* from[COPIES];
    u32 to;
    int rows, terms;  // that are left from this thread's first copy on

    __device__ __forceinline__ LoaderB(const U* b, int k0, int n0, int n, int k, int ldb)
    {
        const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
        rows = min(n - n0, BN) - row, terms = k - k0 - chunk * CHUNK, to = swizzled(row, chunk);
#pragma unroll
        for (int i = 0; i < COPIES; ++i)
            from[i] = b + (i * PER_COPY < rows ? (long long)(n0 + row + i * PER_COPY) * ldb + k0 + chunk * CHUNK : 0);
    }

    __device__ __forceinline__ void pin_all()
    {
        pin(to), pin(rows), pin(terms);
#pragma unroll
        for (const U*& row : from) pin(row);
    }

    // Copies the step that begins at term k0.
    __device__ __forceinline__ void copy(u32 tile, int k0) const
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const bool inside = i * PER_COPY < rows && k0 < terms;
            if (BN % PER_COPY && i * PER_COPY + threadIdx.x / 8 >= BN) break;
            cp_async<CHUNK>(tile + to + i * PER_COPY * 128, (const T*)(from[i] + (inside ? k0 : 0)), inside);
        }
    }
};
