// y[batch][j][i] = x[batch][i][j] of dense matrices with a short side of FEW elements. A thread has V neighbours
// along the other side, and thereby one chunk of elements that are adjacent in y (ROWS: x has FEW rows) or in x (its
// rows have FEW elements). T is an unsigned integer of the elements' size.
//
// Compile-time: FEW, V and ROWS; ALIGNED, to how many bytes chunks are.

#include "ptx/pdl.cuh"

template <int COUNT, int BYTES> struct alignas(BYTES) Chunk {
    T at[COUNT];
};
using Side = Chunk<V, sizeof(T) * V>;
using Whole = Chunk<V * FEW, ALIGNED>;

extern "C" __global__ void __launch_bounds__(256)
transpose_few(T* y, const T* x, int many, int pitch, long long batch_x, long long batch_y)
{
    const int first = (blockIdx.x * 256 + threadIdx.x) * V;
    if (first >= many) return;
    x += blockIdx.y * batch_x;
    y += blockIdx.y * batch_y;
    grid_dependency_sync();
    Whole whole = {};
    if constexpr (!ROWS) whole = *(const Whole*)(x + (long long)first * FEW);
#pragma unroll
    for (int i = 0; i < FEW; ++i) {
        Side side = {};
        if constexpr (ROWS) side = *(const Side*)(x + (long long)i * pitch + first);
#pragma unroll
        for (int j = 0; j < V; ++j) {
            T& element = whole.at[j * FEW + i];
            if constexpr (ROWS)
                element = side.at[j];
            else
                side.at[j] = element;
        }
        if constexpr (!ROWS) *(Side*)(y + (long long)i * pitch + first) = side;
    }
    if constexpr (ROWS) *(Whole*)(y + (long long)first * FEW) = whole;
}
