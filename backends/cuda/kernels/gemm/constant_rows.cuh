// Rows of constants that kernels pack: of a matrix, of its columns, or of filters.

#pragma once

constexpr int EIGHT = 8;  // rows of a block of 256 threads, of which every eighth has the same row

// Element (row, term) is x[row * of_row + term / inner * of_outer + term % inner * of_inner], times alpha, and times
// scale[term] if there is a scale. Only the first `filled` of `inner` terms exist, the others are zero.
template <typename X, typename S> struct Rows {
    const X* x;
    const S* scale;
    float alpha;
    int rows, terms, inner, filled;
    long long of_row, of_outer, of_inner;

    __device__ __forceinline__ float at(int row, int term) const
    {
        if (row >= rows || term >= terms) return 0.0f;
        const int outer = term / inner, within = term - outer * inner;
        if (within >= filled) return 0.0f;
        const float factor = scale ? __fmul_rn(float(scale[term]), alpha) : alpha;
        return __fmul_rn(float(x[row * of_row + outer * of_outer + within * of_inner]), factor);
    }
};

// Returns the greatest absolute value of the row of a thread, whose block has all its terms; at least `least`.
template <typename X, typename S>
__device__ __forceinline__ float greatest_of(const Rows<X, S>& from, int row, float least = 0.0f)
{
    __shared__ float found[256];
    float greatest = least;
#pragma unroll 1
    for (int term = threadIdx.x / EIGHT; term < from.terms; term += 256 / EIGHT)
        greatest = fmaxf(greatest, fabsf(from.at(row, term)));
    found[threadIdx.x] = greatest;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x % EIGHT; i < 256; i += EIGHT) greatest = fmaxf(greatest, found[i]);
    return greatest;
}

// Returns, on the threads of warp 0 that have one each of the rows of a block, the sums of what all threads add to them.
__device__ __forceinline__ double sum_of(double own)
{
    __shared__ double found[256];
    __syncthreads();
    found[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x >= EIGHT) return 0;
#pragma unroll 1
    for (int i = threadIdx.x + EIGHT; i < 256; i += EIGHT) own += found[i];
    return own;
}
