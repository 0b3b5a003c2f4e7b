// Rows that are normalized by two products of few rows, one behind the other, without a kernel in between.
//
// The product in front stores its results times the factors of a normalization, none of which is greater than one, so that
// nothing gets too large for its type, and the sum of squares of every OF_PART results of a row. The one behind multiplies
// these rows as they are, and its results by the inverse of their root mean square, once all terms have been read.
//
// Compile-time, besides the constants of gemv.cuh: R, the type of results; LEAVES, whether results are stored so; DIVIDES,
// whether x is such rows.

constexpr int OF_PART = 8;

// What a block leaves of its results. Eight neighbouring threads have those of a part.
struct Left {
    R* rows;
    const R* factors;
    float* squares;
    int n;
    R factor;  // of a thread's first result

    static_assert(!LEAVES || (PRODUCTS == 1 && RESULTS % OF_PART == 0), "parts are a block's");

    // Reads what never changes.
    __device__ __forceinline__ Left(R* rows, const R* factors, float* squares, int n0, int n)
        : rows(rows), factors(factors), squares(squares), n(n), factor()
    {
        const int column = n0 + threadIdx.x % RESULTS;
        if (LEAVES && threadIdx.x < M * RESULTS && (!EDGE || column < n)) factor = factors[column];
    }

    __device__ __forceinline__ void operator()(R result, int m, int column, bool is_first) const
    {
        if constexpr (LEAVES) {
            const float value = result, by = is_first ? factor : factors[column];
            rows[(long long)m * n + column] = R(value * by);
            float sum = value * value;
            const u32 lanes = 0xffu << threadIdx.x % 32 / OF_PART * OF_PART;
#pragma unroll
            for (int other = 1; other < OF_PART; other *= 2) sum += __shfl_xor_sync(lanes, sum, other);
            if (column % OF_PART == 0) squares[(m * n + column) / OF_PART] = sum;
        }
    }
};

// The sums of squares of the rows of x that each warp has added up.
struct alignas(16) Squares {
    float of[8][WARPS];
};

// The squares of the rows of x: a warp adds up those of some parts of all rows, a few lanes those of a row.
struct Measures {
    static constexpr int LANES = M == 1 ? 32 : 4, WORDS = K / OF_PART / 4, STRIDE = LANES * WARPS;
    static constexpr int TIMES = DIVIDES ? (WORDS + STRIDE - 1) / STRIDE : 1;
    static_assert(!DIVIDES || K % (4 * OF_PART) == 0, "words have squares of one row");
    float4 of[TIMES];

    __device__ __forceinline__ explicit Measures(const float* squares)
    {
        if constexpr (!DIVIDES) return;
        const int row = min(int(threadIdx.x) % 32 / LANES, M - 1), first = threadIdx.x / 32 * LANES + threadIdx.x % LANES;
#pragma unroll
        for (int i = 0; i < TIMES; ++i) {
            const int word = first + i * STRIDE;
            of[i] = {};
            if (WORDS % STRIDE == 0 || word < WORDS) of[i] = ((const float4*)squares)[row * WORDS + word];
        }
    }

    // Stores the sums of a warp.
    __device__ __forceinline__ void leave(Squares& to) const
    {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TIMES; ++i) sum += (of[i].x + of[i].y) + (of[i].z + of[i].w);
#pragma unroll
        for (int other = 1; other < LANES; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (threadIdx.x % LANES == 0) to.of[threadIdx.x % 32 / LANES][threadIdx.x / 32] = sum;
    }
};

// The inverse of the root mean square of row m, when all warps have stored the squares that they have.
__device__ __forceinline__ float inverse_root(const Squares& squares, int m, float epsilon)
{
    static_assert(WARPS % 4 == 0, "four sums are a word");
    float4 sums = {};
#pragma unroll
    for (int warp = 0; warp < WARPS; warp += 4) {
        const float4 some = *(const float4*)(squares.of[m] + warp);
        sums.x += some.x, sums.y += some.y, sums.z += some.z, sums.w += some.w;
    }
    return rsqrtf(((sums.x + sums.y) + (sums.z + sums.w)) / K + epsilon);
}
