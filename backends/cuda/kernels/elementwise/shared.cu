// A chain of elementwise operators with several results, of few elements: a thread computes one of each.
//
// Generated: R0, R1, ... the types of the results; A0, A1, ... those of the operands; chain(a0, ..., r0, ...),
// the arithmetic, which stores the results in its last parameters, in the types that they are computed in, C0,
// C1, ...; OPERANDS(X) and RESULTS(X), which are X(0) X(1) ...; and CHAIN_ARGUMENTS.

#include "move/axes.cuh"
#include "ptx/pdl.cuh"

#define READS(i) , const A##i *a##i, Ints strides##i
#define WRITES(i) , R##i *y##i, Ints steps##i
#define FROM(i) Index offset##i = 0;
#define TO(i) Index place##i = 0;
#define MOVE_FROM(i) offset##i += position * strides##i.at[axis];
#define MOVE_TO(i) place##i += position * steps##i.at[axis];
#define READ(i) const A##i word##i = a##i[offset##i];
#define RESULT(i) C##i result##i;
#define STORE(i) y##i[place##i] = R##i(result##i);

extern "C" __global__ void __launch_bounds__(64)
shared_chain(Index count, Ints sizes, Ints factors, Ints shifts RESULTS(WRITES) OPERANDS(READS))
{
    const Index i = blockIdx.x * (Index)64 + threadIdx.x;
    if (i >= count) return;
    OPERANDS(FROM)
    RESULTS(TO)
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        OPERANDS(MOVE_FROM)
        RESULTS(MOVE_TO)
    });
    grid_dependency_sync();
    OPERANDS(READ)
    RESULTS(RESULT)
    chain(CHAIN_ARGUMENTS);
    RESULTS(STORE)
}
