// y[outer][batch][j][i] = x[outer][batch][i][j] through a tile in shared memory, so that reads and writes are
// both coalesced. The rows of either may have gaps between them: those of slices of larger images, which must not
// be written, and padded channels, which are part of the `width` of a row of y and become zero. T is an
// unsigned integer of the elements' size.

#include "ptx/pdl.cuh"

constexpr int SIDE = 32, LANES = 8;

extern "C" __global__ void __launch_bounds__(SIDE * LANES)
transpose(T* y, const T* x, int rows, int columns, int pitch_x, int pitch_y, int width, int tiles,
          long long batch_x, long long batch_y, long long outer_x, long long outer_y)
{
    __shared__ T tile[SIDE][SIDE + 1];  // a column of it touches every bank
    const int lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    const int j0 = blockIdx.x % tiles * SIDE, i0 = blockIdx.x / tiles * SIDE;
    x += blockIdx.y * batch_x + blockIdx.z * outer_x;
    y += blockIdx.y * batch_y + blockIdx.z * outer_y;
    grid_dependency_sync();
    for (int k = first; k < SIDE; k += LANES) {
        const int i = i0 + k, j = j0 + lane;
        tile[k][lane] = i < rows && j < columns ? x[(long long)i * pitch_x + j] : T(0);
    }
    __syncthreads();
    for (int k = first; k < SIDE; k += LANES) {
        const int j = j0 + k, i = i0 + lane;
        if (j < columns && i < width) y[(long long)j * pitch_y + i] = tile[lane][k];
    }
}

// Copies rows of `columns` elements into rows of `width`, followed by zeros.
extern "C" __global__ void __launch_bounds__(256)
repitch(T* y, const T* x, long long count, int columns, int width, int pitch_x, int pitch_y)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long row = i / width;
    const int column = i - row * width;
    grid_dependency_sync();
    y[row * pitch_y + column] = column < columns ? x[row * pitch_x + column] : T(0);
}
