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

#include "gemm/row_moments.cuh"
#include "gemm/rotated_eights.cuh"

// Where normalized rows are stored, if KEPT: each block has the parts of which the number is that of its columns.
struct Kept {
    const T *rows, *scale, *shift;
    T* to;
    int first, every;

    // Stores words of a row; `lane` is one of some that share it.
    template <int LANES> __device__ __forceinline__ void operator()(int row, int lane, float2 of_row) const
    {
        if constexpr (!KEPT) return;
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

// What happens to eight adjacent sums, and to results.
struct Around : AsTheyAre {
    static_assert(!NORMALIZED || THREADS % (BN / 8) == 0, "a thread has the same columns in all rows");
    float factors[8], sums[8], shifts[8];
    const float2* rows;  // mean and inverse deviation
    float2* moments;     // of results
    int parts;           // of a row of results
    Turning turning;     // of results, if ROTATES

    // Of columns that never change.
    __device__ __forceinline__ Around(const float* columns, const float2* rows, float2* moments, int n0, int n,
                                      const Turning& turning)
        : rows(rows), moments(moments), parts(n / OF_PART), turning(turning)
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

    template <typename Results>
    __device__ __forceinline__ void store(R* to, const Results& results, int row, int column, int room) const
    {
        if constexpr (ROTATES) turning.store(results, row, column);
        else keep(to, results, room);
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
