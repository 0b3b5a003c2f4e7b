// Packs a matrix of 16-bit floats times a scale of its terms as mantissas and powers of two; see normalized_rows.cuh.
//
// The greatest mantissa of a row is at least 2^7 and less than 2^8. Compile-time: T; S, the type of scale and shift.

#include "gemm/constant_rows.cuh"

__device__ __forceinline__ float power_of(float greatest)
{
    const unsigned exponent = __float_as_uint(greatest) >> 23;  // of 2^(exponent - 127) <= greatest, above 0
    return __uint_as_float((greatest > 0 ? exponent < 8 ? 1 : exponent - 7 : 127 - 8) << 23);
}

// Writes mantissas in rows of `width` terms, zeros past the last one.
extern "C" __global__ void __launch_bounds__(256)
scaled_rows(const T* x, const S* scale, T* y, int rows, int terms, int width, long long of_row, long long of_term)
{
    const Rows<T, S> from = {x, scale, 1.0f, rows, terms, terms, terms, of_row, 0, of_term};
    const int row = blockIdx.x * EIGHT + threadIdx.x % EIGHT;
    const float inverse = 1.0f / power_of(greatest_of(from, row));
    if (row >= rows) return;
#pragma unroll 1
    for (int term = threadIdx.x / EIGHT; term < width; term += 256 / EIGHT)
        y[(long long)row * width + term] = T(from.at(row, term) * inverse);
}

// Writes the powers of two of all rows, then the sums of their mantissas times these, then of products with the shift.
extern "C" __global__ void __launch_bounds__(256)
scaled_columns(const T* x, const S* scale, const S* shift, float* y, int rows, int terms, long long of_row,
               long long of_term)
{
    const Rows<T, S> from = {x, scale, 1.0f, rows, terms, terms, terms, of_row, 0, of_term};
    const Rows<T, S> plain = {x, nullptr, 1.0f, rows, terms, terms, terms, of_row, 0, of_term};
    const int row = blockIdx.x * EIGHT + threadIdx.x % EIGHT;
    const float power = power_of(greatest_of(from, row));
    double mantissas = 0, shifts = 0;
#pragma unroll 1
    for (int term = threadIdx.x / EIGHT; term < terms; term += 256 / EIGHT) {
        mantissas += float(T(from.at(row, term) * (1.0f / power)));
        if (shift) shifts += double(plain.at(row, term)) * double(float(shift[term]));
    }
    mantissas = sum_of(mantissas), shifts = sum_of(shifts);
    if (threadIdx.x >= EIGHT || row >= rows) return;
    y[row] = power, y[rows + row] = mantissas * power, y[2 * rows + row] = shifts;
}
