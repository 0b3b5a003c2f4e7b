// A chain of elementwise operators in one pass over memory. A thread computes VECTOR adjacent results; operands
// are read in place, however they are broadcast. GAPS says whether the rows of the result have gaps between them,
// as those of a slice of a larger tensor do; otherwise the result is contiguous.
//
// Generated: R, the type of the result; A0, A1, ... the types of the operands; chain(a0, a1, ...),
// the arithmetic; OPERANDS(X), which is X(0) X(1) ...; CHAIN_ARGUMENTS, the elements of one result;
// and INNER0, INNER1, ...: how many elements of an operand are read at once where it is contiguous along
// with the result, 0 where it is repeated (or VECTOR is 1).

#include "elementwise/words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"

#define PARAMETER(i) , const A##i *a##i, Ints strides##i
#define OFFSET(i) Index offset##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define READ(i) const Words<A##i> words##i = words<INNER##i>(a##i + offset##i);

extern "C" __global__ void __launch_bounds__(256)
elementwise(R* y, Ints strides, Index count, Ints sizes, Ints factors, Ints shifts OPERANDS(PARAMETER))
{
    const Index i = (blockIdx.x * (Index)256 + threadIdx.x) * VECTOR;
    if (i >= count) return;
    OPERANDS(OFFSET)
    Index offset = 0;
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        OPERANDS(MOVE)
    });
    grid_dependency_sync();
    OPERANDS(READ)
    Words<R> results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) results.at[q] = chain(CHAIN_ARGUMENTS);
    *(Words<R>*)(y + (GAPS ? offset : i)) = results;
}
