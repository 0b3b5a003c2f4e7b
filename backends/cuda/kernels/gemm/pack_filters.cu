// Packs computed filters as rows of terms, in the orders in which constants are packed on the host: y[row][term] is
// element row / rows_in, row % rows_in, term / inner, term % inner of a view of x. Rows are followed by zeros. Where
// groups are joined, `filled` of the `inner` elements belong to a row, those of its own group; the others are zero.
//
// Compile-time: T, an unsigned integer of the elements' size.

#include "ptx/pdl.cuh"

struct Rows {
    int pitch, rows_in, terms, inner, filled, own;  // own: rows of one group
    int of_outer_row, of_row, of_outer, of_inner;   // distances in x
};

extern "C" __global__ void __launch_bounds__(256)
pack_filters(T* y, const T* x, int count, Rows p)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    const int row = i / p.pitch, term = i - row * p.pitch, outer = term / p.inner;
    const int row_in = row % p.rows_in, inner = term - outer * p.inner - row_in / p.own * p.filled;
    const bool exists = term < p.terms && inner >= 0 && inner < p.filled;
    const int at = row / p.rows_in * p.of_outer_row + row_in * p.of_row + outer * p.of_outer + inner * p.of_inner;
    grid_dependency_sync();
    y[i] = exists ? x[at] : T(0);
}
