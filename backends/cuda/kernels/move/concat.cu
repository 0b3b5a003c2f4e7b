// Concatenates rows: each row of y is a row of every input, one after the other. One launch for all
// inputs; blockIdx.y is the input. VECTOR elements at a time where all lengths allow it, and ITEMS of
// these words in flight. Rows of y are `pitch` elements apart. An input is dense but for gaps behind
// each `columns` elements, which are its own pitch apart: a row, or a part of one.
//
// Generated: INPUTS(X), which is X(0) X(1) ... for all inputs. T is an unsigned integer of the
// elements' size.

#include "ptx/pdl.cuh"

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

#define PARAMETER(i) \
    , const T *x##i, Index width##i, Index columns##i, Index pitch##i, Index start##i
#define CHOICE(i)       \
    if (blockIdx.y == i) { \
        x = x##i;       \
        width = width##i; \
        columns = columns##i; \
        from = pitch##i; \
        start = start##i; \
    }

extern "C" __global__ void __launch_bounds__(256)
concat(T* y, Index rows, Index pitch INPUTS(PARAMETER))
{
    const T* x = nullptr;
    Index width = 1, columns = 1, from = 1, start = 0;
    INPUTS(CHOICE)
    grid_dependency_sync();
    const Index count = rows * width;
    const Index step = gridDim.x * (Index)256 * VECTOR;
    for (Index i = (blockIdx.x * (Index)256 + threadIdx.x) * VECTOR; i < count; i += ITEMS * step) {
        Words kept[ITEMS];
        Index to[ITEMS];
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const Index at = i + k * step, row = at / width, place = at - row * width;
            to[k] = row * pitch + start + place;
            const Index line = COLUMNS ? at / columns : row;
            const Index column = COLUMNS ? at - line * columns : place;
            if (at < count) kept[k] = *(const Words*)(x + line * from + column);
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
            if (i + k * step < count) *(Words*)(y + to[k]) = kept[k];
    }
}
