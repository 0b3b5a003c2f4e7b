// Few elements that are read and stored where indices say, and the elementwise operators in between: one block, whose
// threads have one element of each tensor. All elements are read before any is stored, so that results may be in the memory
// of operands.
//
// Element i of a tensor is at i * stride; an index, i * slot of those that a tensor may have, counts steps from there, or
// from the end if negative. Where it is out of range, the element is zero, and not stored.
//
// Generated: THREADS of the block; A0, A1, ... and I0, I1, ... the types of operands and of their indices; R0, R1, ... and
// J0, J1, ... those of results; chain(a0, ..., r0, ...), the arithmetic, which stores what it makes in its last parameters,
// in the types that they are computed in, C0, C1, ...; OPERANDS(X), MADE(X) and RESULTS(X), which are X(0) X(1) ...;
// CHAIN_ARGUMENTS; and RESULT0, RESULT1, ...: the operand, or what is made, that becomes a result.

#include "elementwise/moved_words.cuh"
#include "ptx/pdl.cuh"

#define READS(i) , const A##i *a##i, Index stride##i, const I##i *at##i, Index slot##i, Index size##i, Index step##i
#define WRITES(i) , R##i *y##i, Index count##i, Index stride_y##i, const J##i *at_y##i, Index slot_y##i, Index size_y##i, Index step_y##i
#define FROM(i) const Index from##i = at##i && inside ? entry_at(at##i[n * slot##i], size##i, step##i) : 0;
#define TO(i) const Index to##i = at_y##i && inside ? entry_at(at_y##i[n * slot_y##i], size_y##i, step_y##i) : 0;
#define READ(i) A##i operand##i = {}; if (inside && from##i >= 0) operand##i = a##i[n * stride##i + from##i];
#define MAKE(i) C##i made##i;
#define STORE(i) if (n < count##i && to##i >= 0) y##i[n * stride_y##i + to##i] = R##i(RESULT##i);

extern "C" __global__ void __launch_bounds__(THREADS)
placed_chain(Index count OPERANDS(READS) RESULTS(WRITES))
{
    const Index n = threadIdx.x;
    const bool inside = n < count;
    grid_dependency_sync();
    OPERANDS(FROM)
    RESULTS(TO)
    OPERANDS(READ)
    MADE(MAKE)
    chain(CHAIN_ARGUMENTS);
    __syncthreads();
    RESULTS(STORE)
}
