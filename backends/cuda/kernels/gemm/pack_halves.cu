// Rows of float32 into halves, in the order of store_halves.cuh, and back. Sixteen threads have a row of a block of 64
// terms, four terms each.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/halves.cuh"
#include "gemm/store_halves.cuh"

struct Place {
    int row, term;
    __device__ __forceinline__ Place()
        : row(blockIdx.x * 16 + threadIdx.x / 16), term(blockIdx.y * BLOCK_TERMS + threadIdx.x % 16 * 4)
    {
    }
};

extern "C" __global__ void __launch_bounds__(256)
into_halves(const float* x, unsigned char* y, int count, int pitch, int rows, int terms)
{
    const Place at;
    grid_dependency_sync();
    float4 four = {};
    if (at.row < count) four = *(const float4*)(x + (long long)at.row * pitch + at.term);
    const float values[4] = {four.x, four.y, four.z, four.w};
    store_halves({y, rows, terms}, values, at.row, at.term);
}

extern "C" __global__ void __launch_bounds__(256)
from_halves(unsigned char* x, float* y, int count, int pitch, int rows, int terms)
{
    const Place at;
    grid_dependency_sync();
    if (at.row >= count) return;
    const RowsInHalves from = {x, rows, terms};
    const float scale = from.scale(at.row, at.term / BLOCK_TERMS);
    for (int i = 0; i < 4; ++i) {
        const int term = at.term % 32 + i, within = term % 16, fours = within / 4;
        const int position = term / 16 * 16 + fours / 2 * 8 + within % 4 * 2 + fours % 2;
        const unsigned char* high = from.place(at.row, at.term / 32, position);
        const unsigned char* low = (const unsigned char*)((unsigned long long)high ^ 64);
        const float2 found = halves_of(*(const unsigned short*)high | (u32)*(const unsigned short*)low << 16);
        y[(long long)at.row * pitch + at.term + i] = (found.x + found.y) * scale;
    }
}
