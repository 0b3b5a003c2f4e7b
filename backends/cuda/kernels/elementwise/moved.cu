// A chain of elementwise operators, as in elementwise.cu, whose operands are read through chains of nodes that
// move elements: element i of an operand, with i = origin + the sum of position * stride + an entry of a table.
// Where the entry is negative, there is no element, and the operand is zero. Or the table is a tensor of indices, as
// Gather's, whose entries count steps from the front, or from the end if negative.
//
// Generated: as in elementwise.cu, and TABLED0, TABLED1, ...: whether an operand has a table; INDEXED0, ...: whether
// it is one of indices; L0, ...: the types of tables.

#include "elementwise/moved_words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"

#define PARAMETER(i) , const A##i *a##i, Ints strides##i, const L##i *table##i, Ints slots##i, Index origin##i, Index size##i, Index step##i
#define OFFSET(i) Index offset##i = origin##i, slot##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis], slot##i += position * slots##i.at[axis];
#define LOOK(i) Index entry##i = TABLED##i ? Index(table##i[slot##i]) : 0;
#define FIND(i) if (INDEXED##i) entry##i = entry_at(table##i[slot##i], size##i, step##i);
#define READ(i) const Words<A##i> words##i = words_or_zeros<INNER##i>(a##i + offset##i + entry##i, entry##i >= 0);

extern "C" __global__ void __launch_bounds__(256)
moved(R* y, Ints strides, Index count, Ints sizes, Ints factors, Ints shifts OPERANDS(PARAMETER))
{
    const Index i = (blockIdx.x * (Index)256 + threadIdx.x) * VECTOR;
    if (i >= count) return;
    OPERANDS(OFFSET)
    Index offset = 0;
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        OPERANDS(MOVE)
    });
    OPERANDS(LOOK)
    grid_dependency_sync();
    OPERANDS(FIND)
    OPERANDS(READ)
    Words<R> results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) results.at[q] = chain(CHAIN_ARGUMENTS);
    *(Words<R>*)(y + (GAPS ? offset : i)) = results;
}
