// Packs rows of constants into the orders of `pack.in_parts` and `f16x3.in_halves`, and finds `f16x3.scales_of` them, with the same bits; and their sums.
//
// Rows are those of `constant_rows.cuh`, of matrices that are `of_matrix` apart. A block has eight of a matrix, some steps of 32 terms at a time. Rows and terms are zero-padded.
//
// Loops are not unrolled: that would take longer to compile than it saves.
//
// Compile-time: KIND, for ldmatrix.cuh; PARTS, the numbers of tf32 for one of float32.

#include "gemm/constant_rows.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"

constexpr int STEP = 32;
constexpr float LEAST = 1.0f / (1ull << 63) / (1ull << 50);  // of the greatest numbers of rows, so that scales are finite

struct alignas(16) Four {
    float at[4];
};

using Constants = Rows<float, float>;

__device__ __forceinline__ float rounded(float value)
{
    const u32 bits = __float_as_uint(value);
    const float found = __uint_as_float((bits + 0x1000) & 0xffffe000);
    if (fabsf(found) < INFINITY) return found;
    // Infinities, NaNs, and numbers that would be rounded to infinity.
    return fabsf(value) < INFINITY ? __uint_as_float(bits & 0xffffe000) : value;
}

// A thread has four adjacent terms of a row.
extern "C" __global__ void __launch_bounds__(256)
rows_in_parts(const float* x, const float* scale, float alpha, float* y, int rows, int terms, int inner, long long of_matrix,
              long long of_row, long long of_outer, long long of_inner, int filled)
{
    const Constants from = {x + blockIdx.z * of_matrix, scale, alpha, rows, terms, inner, filled, of_row, of_outer, of_inner};
    const int within = threadIdx.x % EIGHT, chunk = threadIdx.x / EIGHT % 8, row = blockIdx.x * EIGHT + within;
    const int steps = (terms + STEP - 1) / STEP, padded = gridDim.x * EIGHT;
    for (int step = blockIdx.y * 4 + threadIdx.x / 64; step < steps; step += gridDim.y * 4) {
        Four high, low;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const float value = from.at(row, step * STEP + chunk * 4 + q);
            high.at[q] = rounded(value);
            low.at[q] = fabsf(value) < INFINITY ? rounded(value - high.at[q]) : 0.0f;
        }
        const long long first = ((long long)blockIdx.z * steps + step) * PARTS * padded + row;
        float* to = y + first * STEP + (chunk ^ within) * 4;
        *(Four*)to = high;
        if (PARTS == 2) *(Four*)(to + (long long)padded * STEP) = low;
    }
}

// A thread has two terms of a row that are adjacent in the order of `in_halves`.
extern "C" __global__ void __launch_bounds__(256)
rows_in_halves(const float* x, const float* scale, float alpha, u32* y, int rows, int terms, int inner, long long of_matrix,
               long long of_row, long long of_outer, long long of_inner, int filled)
{
    const Constants from = {x + blockIdx.z * of_matrix, scale, alpha, rows, terms, inner, filled, of_row, of_outer, of_inner};
    const int within = threadIdx.x % EIGHT, pair = threadIdx.x / EIGHT % 16, row = blockIdx.x * EIGHT + within;
    const int steps = (terms + STEP - 1) / STEP, padded = gridDim.x * EIGHT, chunk = pair / 4;
    const int first = threadIdx.x / 128, term = chunk * 8 + pair % 4;
    // Brings the greatest number to 2^14 or a little more, see `f16x3.TOP`.
    const u32 greatest = __float_as_uint(greatest_of(from, row, LEAST)) & 0x7f800000;
    const float power = __uint_as_float((2u * 127 + 14 << 23) - greatest);
#pragma unroll 1
    for (int step = first; step < steps; step += 2) {
        const float a = from.at(row, step * STEP + term) * power, b = from.at(row, step * STEP + term + 4) * power;
        u32 high = pair_of(a, b);
        if (a != 0 && !(high & 0x7fff)) high |= 1;
        if (b != 0 && !(high & 0x7fff0000)) high |= 0x10000;
        const float2 parts = halves_of(high);
        u32* to = y + (((long long)blockIdx.z * steps + step) * padded + row) * STEP + pair % 4;
        to[(chunk ^ within) * 4] = high;
        to[(chunk + 4 ^ within) * 4] = pair_of(a - parts.x, b - parts.y);
    }
}

// What the sums of rows of `rows_in_halves` are multiplied by; 1 for rows that there are not.
extern "C" __global__ void __launch_bounds__(256)
scales_of_rows(const float* x, const float* scale, float alpha, float* y, int rows, int terms, int inner, long long of_matrix,
               long long of_row, long long of_outer, long long of_inner, int filled)
{
    const Constants from = {x + blockIdx.z * of_matrix, scale, alpha, rows, terms, inner, filled, of_row, of_outer, of_inner};
    const int row = blockIdx.x * EIGHT + threadIdx.x % EIGHT, padded = gridDim.x * EIGHT;
    const float greatest = greatest_of(from, row);
    if (threadIdx.x >= EIGHT) return;
    // Of 2^(e - 1) <= greatest < 2^e, 2^(e + 7), see `f16x3.EXTRA`; e is 0 for rows of zeros.
    const u32 power = greatest > 0 ? (__float_as_uint(greatest) & 0x7f800000) + (8u << 23) : 127u + 7 << 23;
    y[(long long)blockIdx.z * padded + row] = row < rows ? __uint_as_float(power) : 1.0f;
}

// The sums of rows times a scale of their terms, and behind all of them those times a shift, zeros if there is none.
extern "C" __global__ void __launch_bounds__(256)
sums_of_rows(const float* x, const float* scale, const float* shift, float alpha, float* y, int rows, int terms,
             long long of_row, long long of_inner)
{
    const int row = blockIdx.x * EIGHT + threadIdx.x % EIGHT;
    const Constants from = {x, blockIdx.y ? shift : scale, alpha, rows, terms, terms, terms, of_row, 0, of_inner};
    double sum = 0;
#pragma unroll 1
    for (int term = threadIdx.x / EIGHT; from.scale && term < terms; term += 256 / EIGHT) sum += from.at(row, term);
    sum = sum_of(sum);
    if (threadIdx.x < EIGHT && row < rows) y[(long long)blockIdx.y * rows + row] = sum;
}
