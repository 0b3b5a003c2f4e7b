// A recurrence of elementwise steps along one axis. A thread computes one element of all results, one step after
// another; its state stays in registers. What steps read is fetched DEPTH steps ahead.
//
// Generated: R, the type of the result; A0, A1, ... the types of the operands; H0, H1, ... those of states;
// chain(...), the arithmetic of a step; OPERANDS(X), which is X(0) X(1) ..., and STATES(X), FIXED(X) and MOVING(X):
// of the operands that are initial states, of those that all steps read, and of those with a part for each step;
// CALL(q), a step with the parts that were fetched for it; FIRST, whether something precedes the result of the
// first step; RANK, THREADS and DEPTH.

#include "move/axes.cuh"
#include "ptx/pdl.cuh"

#define PARAMETER(i) , const A##i *a##i, Ints strides##i, Index origin##i, Index step##i
#define OFFSET(i) Index offset##i = origin##i;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define START(i) H##i h##i = H##i(a##i[offset##i]);
#define KEEP(i) const A##i kept##i = a##i[offset##i];
#define DECLARE(i) A##i now##i[DEPTH], next##i[DEPTH];
#define FETCH(i) next##i[q] = a##i[offset##i + (t + q) * step##i];
#define ADVANCE(i) now##i[q] = next##i[q];

extern "C" __global__ void __launch_bounds__(THREADS)
recurrence(R* y, Ints strides, Index origin, Index step, const R* first, Ints strides_first, Index count, Ints sizes,
           Ints factors, Ints shifts, int steps OPERANDS(PARAMETER))
{
    const Index i = blockIdx.x * (Index)THREADS + threadIdx.x;
    if (i >= count) return;
    OPERANDS(OFFSET)
    Index offset = origin, before = 0;
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        before += position * strides_first.at[axis];
        OPERANDS(MOVE)
    });
    grid_dependency_sync();
    if (FIRST) y[offset - step] = first[before];
    STATES(START)
    FIXED(KEEP)
    MOVING(DECLARE)
    for (int t = 0; t < steps + DEPTH; t += DEPTH) {
#pragma unroll
        for (int q = 0; q < DEPTH; ++q)
            if (t + q < steps) { MOVING(FETCH) }
#pragma unroll
        for (int q = 0; q < DEPTH; ++q)
            if (t && t - DEPTH + q < steps) y[offset + (t - DEPTH + q) * step] = CALL(q);
#pragma unroll
        for (int q = 0; q < DEPTH; ++q) { MOVING(ADVANCE) }
    }
}
