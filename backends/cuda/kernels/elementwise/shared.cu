// A chain of elementwise operators with several results: a thread computes VECTOR adjacent elements of each.
//
// Generated: THREADS of a block; R0, R1, ... the types of the results; A0, A1, ... those of the operands;
// chain(a0, ..., r0, ...), the arithmetic, which stores the results in its last parameters, in the types that they are
// computed in, C0, C1, ...; OPERANDS(X) and RESULTS(X), which are X(0) X(1) ...; CHAIN_ARGUMENTS; and INNER0, INNER1, ...
// and OUTER0, OUTER1, ...: how many elements of an operand and a result are read and written at once, as in elementwise.cu.

#include "elementwise/words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"

#define READS(i) , const A##i *a##i, Ints strides##i
#define WRITES(i) , R##i *y##i, Ints steps##i
#define FROM(i) Index offset##i = 0;
#define TO(i) Index place##i = 0;
#define MOVE_FROM(i) offset##i += position * strides##i.at[axis];
#define MOVE_TO(i) place##i += position * steps##i.at[axis];
#define READ(i) const Words<A##i> words##i = words<INNER##i>(a##i + offset##i);
#define FOUND(i) Words<R##i> found##i;
#define RESULT(i) C##i result##i;
#define ROUND(i) found##i.at[q] = R##i(result##i);
#define STORE(i) store<OUTER##i>(y##i + place##i, found##i);

template <int OUTER, typename R>
__device__ __forceinline__ void store(R* to, const Words<R>& from)
{
#pragma unroll
    for (int q = 0; q < VECTOR; q += OUTER) *(Words<R, OUTER>*)(to + q) = *(const Words<R, OUTER>*)(from.at + q);
}

extern "C" __global__ void __launch_bounds__(THREADS)
shared_chain(Index count, Ints sizes, Ints factors, Ints shifts RESULTS(WRITES) OPERANDS(READS))
{
    const Index i = (blockIdx.x * (Index)THREADS + threadIdx.x) * VECTOR;
    if (i >= count) return;
    OPERANDS(FROM)
    RESULTS(TO)
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        OPERANDS(MOVE_FROM)
        RESULTS(MOVE_TO)
    });
    grid_dependency_sync();
    OPERANDS(READ)
    RESULTS(FOUND)
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        RESULTS(RESULT)
        chain(CHAIN_ARGUMENTS);
        RESULTS(ROUND)
    }
    RESULTS(STORE)
}
