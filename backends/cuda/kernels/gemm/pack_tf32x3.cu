// Packs matrices that are computed at run time into the order of the second operand of tf32x3.cuh:
// [batch][step][part][row], rows of 32 terms in swizzled order, each number split into two parts.
//
// Element (row, term) of matrix i is b[i * of_matrix + row * of_row + term * of_term]. A block moves 32
// rows and 32 terms. Compile-time: PARTS; ACROSS, whether adjacent elements in memory are rows, not terms.

#include "ptx/pdl.cuh"

struct alignas(16) Four {
    float at[4];
};

__device__ __forceinline__ float rounded(float value)
{
    const float found = __uint_as_float((__float_as_uint(value) + 0x1000) & 0xffffe000);
    if (fabsf(found) < INFINITY) return found;
    // Infinities, NaNs, and numbers that would be rounded to infinity.
    return fabsf(value) < INFINITY ? __uint_as_float(__float_as_uint(value) & 0xffffe000) : value;
}

extern "C" __global__ void __launch_bounds__(256)
split_pack(const float* b, float* packed, int n, int k, int rows, long long of_matrix, int of_row,
           int of_term)
{
    __shared__ float tile[32][33];
    const int tiles = (rows + 31) / 32, number = blockIdx.x / tiles;
    const int n0 = int(blockIdx.x % tiles) * 32, k0 = number * 32;
    grid_dependency_sync();
    b += blockIdx.z * of_matrix;
#pragma unroll
    for (int i = 0; i < 32; i += 8) {
        const int near = threadIdx.x % 32, far = threadIdx.x / 32 + i;
        const int row = ACROSS ? near : far, term = ACROSS ? far : near;
        const bool inside = n0 + row < n && k0 + term < k;
        tile[row][term] =
            inside ? b[(long long)(n0 + row) * of_row + (long long)(k0 + term) * of_term] : 0.0f;
    }
    __syncthreads();
    const int row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    if (n0 + row >= rows) return;
    Four high, low;
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const float value = tile[row][chunk * 4 + q];
        high.at[q] = rounded(value);
        low.at[q] = fabsf(value) < INFINITY ? rounded(value - high.at[q]) : 0.0f;
    }
    const long long step = (long long)blockIdx.z * (gridDim.x / tiles) + number;
    float* to = packed + (step * PARTS * rows + n0 + row) * 32 + (chunk ^ (row & 7)) * 4;
    *(Four*)to = high;
    if (PARTS == 2) *(Four*)(to + (long long)rows * 32) = low;
}
