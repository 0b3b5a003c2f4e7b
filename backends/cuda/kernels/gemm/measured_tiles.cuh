// Tiles of results that are rows to be normalized, or of products of such rows; see measured_rows.cuh.
//
// Compile-time: R, the type of results; BM and BN, rows and columns of a tile; K, terms of a row; LEAVES and DIVIDES.

constexpr int OF_MEASURED = 32;  // elements of a part of a row, of which there is a sum of squares

// What happens to eight adjacent sums, and to results.
struct Measuring : AsTheyAre {
    const float* inverse;  // of the root mean square of each row of the tile
    R* rows;               // times factors
    float* squares;
    int n;
    const R* factors;
    Neighbours<R, 8> of_columns;  // factors of a thread's columns, if these are the same in all rows
    static constexpr bool SAME = THREADS % (BN / 8) == 0;

    // Reads what never changes, of a tile of results from column n0 on.
    __device__ __forceinline__ Measuring(const float* inverse, R* rows, const R* factors, float* squares, int n0, int n)
        : inverse(inverse), rows(rows), squares(squares), n(n), factors(factors), of_columns()
    {
        const int column = n0 + threadIdx.x % (BN / 8) * 8;
        if (LEAVES && SAME && column < n) of_columns = *(const Neighbours<R, 8>*)(factors + column);
    }

    __device__ __forceinline__ void before(float (&values)[8], int row) const
    {
        if constexpr (!DIVIDES) return;
        const float by = inverse[row];
#pragma unroll
        for (int q = 0; q < 8; ++q) values[q] *= by;
    }

    // Four neighbouring threads have the results of a part.
    template <typename Results>
    __device__ __forceinline__ void after(const Results& results, int row, int column) const
    {
        if constexpr (LEAVES) {
            const Results by = SAME ? of_columns : *(const Results*)(factors + column);
            Results made;
            float sum = 0;
#pragma unroll
            for (int q = 0; q < 8; ++q) {
                const float value = results.at[q];
                made.at[q] = R(value * float(by.at[q]));
                sum += value * value;
            }
            *(Results*)(rows + (long long)row * n + column) = made;
            const u32 lanes = 0xfu << threadIdx.x % 32 / 4 * 4;
            sum += __shfl_xor_sync(lanes, sum, 1);
            sum += __shfl_xor_sync(lanes, sum, 2);
            if (threadIdx.x % 4 == 0) squares[row * (n / OF_MEASURED) + column / OF_MEASURED] = sum;
        }
    }
};

// Stores `unit` by the root mean square of each row of the tile, which COUNT threads from FIRST on find; several neighbouring
// lanes have a row.
template <int FIRST, int COUNT>
__device__ __forceinline__ void find_inverses(float* to, const float* squares, int m0, int m, float epsilon, float unit)
{
    constexpr int LANES = BM > COUNT / 2 ? 1 : BM > COUNT / 4 ? 2 : 4, WORDS = K / OF_MEASURED / 4, ROWS = COUNT / LANES;
    static_assert(!DIVIDES || K % (4 * OF_MEASURED) == 0, "words have squares of one row");
    const int thread = (int)threadIdx.x - FIRST, lane = thread % LANES;
    if (thread < 0) return;
#pragma unroll
    for (int first = 0; first < BM; first += ROWS) {
        const int row = first + thread / LANES;
        const float4* const from = (const float4*)squares + min(m0 + row, m - 1) * WORDS;
        float4 sums = {};
#pragma unroll 8
        for (int word = lane; word < WORDS; word += LANES) {
            const float4 part = from[word];
            sums.x += part.x, sums.y += part.y, sums.z += part.z, sums.w += part.w;
        }
        float sum = (sums.x + sums.y) + (sums.z + sums.w);
#pragma unroll
        for (int other = 1; other < LANES; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (row < BM && lane == 0) to[row] = unit * rsqrtf(sum / K + epsilon);
    }
}
