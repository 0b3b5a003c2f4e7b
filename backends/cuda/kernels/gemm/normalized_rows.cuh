// Rows that swap_ab.cu normalizes as it multiplies them, and moments of rows that it stores for another product to do so.
//
// (x - mean) / deviation * scale + shift, times weights, is
//
//     (factors[n] * sum over k of x[k] * v[n][k] - mean * sums[n]) / deviation + shifts[n],
//
// where factors[n] * v[n][k] is scale[k] * w[n][k], rounded; sums[n] adds these up, and shifts[n] the products of shift and
// weights. Factors are powers of two, with which v keeps the digits of weights of any size. What rounding does to v does
// not matter to a mean, which is taken away with the sum of what is multiplied.
//
// The product in front has stored x, and the mean and the sum of squared differences from it of every 64 elements of a row,
// in float32: no kernel reads the rows in between.
//
// Compile-time: MEASURED, whether moments of results are stored; NORMALIZED, whether rows of `a` are normalized; CENTRED,
// whether a mean is subtracted; KEPT, whether normalized rows are stored, too.

constexpr int OF_PART = 64;  // elements of a row, of which there are moments

// Where normalized rows are stored, if KEPT: each block has the parts of which the number is that of its columns.
struct Kept {
    const T *rows, *scale, *shift;
    T* to;
    int first, every;

    // Stores words of a row; `lane` is one of some that share it.
    template <int LANES> __device__ __forceinline__ void store(int row, int lane, float2 of_row) const
    {
        for (int part = first; part < K / OF_PART; part += every)
#pragma unroll
            for (int word = lane; word < OF_PART / 8; word += LANES) {
                const int column = part * OF_PART + word * 8;
                Eight x = *(const Eight*)(rows + row * K + column);
                const Eight by = *(const Eight*)(scale + column);
                const Eight more = shift ? *(const Eight*)(shift + column) : Eight{};
#pragma unroll
                for (int q = 0; q < 8; ++q)
                    x.at[q] = T((float(x.at[q]) - of_row.x) * of_row.y * float(by.at[q]) + float(more.at[q]));
                *(Eight*)(to + row * K + column) = x;
            }
    }

private:
    struct alignas(16) Eight {
        T at[8];
    };
};

// The mean of each row of the tile and the inverse of its deviation, from the moments of its parts. The warps that do not
// request copies find them while others multiply; several neighbouring lanes have a row.
struct RowMoments {
    static constexpr int LANES = BM > 48 ? 1 : BM > 24 ? 2 : 4, PARTS = K / OF_PART, ROWS = 96 / LANES;
    static constexpr int ROUNDS = (BM + ROWS - 1) / ROWS;

    static __device__ __forceinline__ void find(float2* to, const float2* moments, const Kept& kept, int m0, int m,
                                                float epsilon)
    {
        const int thread = (int)threadIdx.x - CONSUMERS - 32, lane = thread % LANES;
        if (thread < 0) return;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            const int row = round * ROWS + thread / LANES;
            const float2* const parts = moments + min(m0 + row, m - 1) * PARTS;
            const float first = parts[0].x;  // so that no digits cancel
            float total = 0, between = 0, within = 0;
#pragma unroll
            for (int part = lane; part < PARTS; part += LANES) {
                const float2 of_part = parts[part];
                const float from = of_part.x - (CENTRED ? first : 0.0f);
                total += from, between += from * from, within += of_part.y;
            }
#pragma unroll
            for (int other = 1; other < LANES; other *= 2) {
                total += __shfl_xor_sync(~0u, total, other);
                between += __shfl_xor_sync(~0u, between, other);
                within += __shfl_xor_sync(~0u, within, other);
            }
            const float mean = CENTRED ? total / PARTS : 0.0f;
            const float variance = within / K + fmaxf(between / PARTS - mean * mean, 0.0f);
            const float2 of_row = make_float2(CENTRED ? first + mean : 0.0f, 1 / sqrtf(variance + epsilon));
            if (row < BM && lane == 0) to[row] = of_row;
            if (KEPT && row < BM && m0 + row < m) kept.store<LANES>(m0 + row, lane, of_row);
        }
    }
};

// What happens to eight adjacent sums, and to results.
struct Around {
    static_assert(!NORMALIZED || THREADS % (BN / 8) == 0, "a thread has the same columns in all rows");
    float factors[8], sums[8], shifts[8];
    const float2* rows;  // mean and inverse deviation
    float2* moments;     // of results
    int parts;           // of a row of results

    // Of columns that never change.
    __device__ __forceinline__ Around(const float* columns, const float2* rows, float2* moments, int n0, int n)
        : rows(rows), moments(moments), parts(n / OF_PART)
    {
        const int column = n0 + threadIdx.x % (BN / 8) * 8;
        if (!NORMALIZED || column >= n) return;
        take(factors, columns + column), take(sums, columns + n + column), take(shifts, columns + 2 * n + column);
    }

    __device__ __forceinline__ void before(float (&values)[8], int row) const
    {
        if constexpr (NORMALIZED) {
            const float2 of_row = rows[row];
#pragma unroll
            for (int q = 0; q < 8; ++q)
                values[q] = fmaf(fmaf(-of_row.x, sums[q], values[q] * factors[q]), of_row.y, shifts[q]);
        }
    }

    // Eight neighbouring threads have the results of a part.
    template <typename Results>
    __device__ __forceinline__ void after(const Results& results, int row, int column) const
    {
        if constexpr (MEASURED) {
            const u32 lanes = 0xffu << threadIdx.x % 32 / 8 * 8;
            float values[8], total = 0, squares = 0;
#pragma unroll
            for (int q = 0; q < 8; ++q) total += values[q] = float(results.at[q]);
#pragma unroll
            for (int other = 1; other < 8; other *= 2) total += __shfl_xor_sync(lanes, total, other);
            const float mean = total / OF_PART;
#pragma unroll
            for (int q = 0; q < 8; ++q) squares += (values[q] - mean) * (values[q] - mean);
#pragma unroll
            for (int other = 1; other < 8; other *= 2) squares += __shfl_xor_sync(lanes, squares, other);
            if (threadIdx.x % 8 == 0) moments[row * parts + column / OF_PART] = make_float2(mean, squares);
        }
    }

private:
    static __device__ __forceinline__ void take(float (&to)[8], const float* from)
    {
        *(float4*)to = *(const float4*)from;
        *(float4*)(to + 4) = *(const float4*)(from + 4);
    }
};
