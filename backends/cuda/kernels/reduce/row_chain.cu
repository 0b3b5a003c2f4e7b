// Reductions of rows, each of what elementwise operators compute from operands and from the reductions before it,
// and elementwise operators behind the last one, in one pass over memory.
//
// SHARES threads share a row, and keep PER words of VECTOR elements each. ALONG: the elements of a row are adjacent,
// and so are these threads; otherwise rows are side by side, and so are threads of several.
//
// Operands are read where they are: an element has a place along RANK axes of rows and along FOLDED axes within one.
//
// Generated: R0, R1, ... the types of results; A0, A1, ... those of the operands; OPERANDS(X), which is X(0) X(1) ...,
// and RESULTS(X) and FOLDS(X) likewise; for each reduction, a namespace fold0 (State, start(), element(x, index),
// combine(a, b) and finish(a, count) as in reduce.cu), Combine0, which calls its combine, Total0, the type of its
// result, and FEED0(p, q), what it combines, of element q of word p; and RESULT0(p, q), ... INNER0, ... and OUTER0, ...:
// how many adjacent elements are read and written at once; WIDE0, ... and WHOLE0, ...: whether a row of an operand and
// of a result has more than one element. THREADS of a block.

#include "elementwise/words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

constexpr int ROWS = THREADS / SHARES;  // of a block

struct Folds {  // outermost first
    Index at[FOLDED];
};

#define READS(i) , const A##i *a##i, Ints strides##i, Folds steps##i, Index origin##i
#define WRITES(i) , R##i *y##i, Ints lines##i, Folds into##i
#define TO(i) Index place##i = 0;
#define MOVE_TO(i) place##i += position * lines##i.at[axis];
#define OFFSET(i) Index offset##i = origin##i;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define WORDS(i) Words<A##i> words##i[WIDE##i ? PER : 1];
#define BEGIN(i) Index from##i = offset##i;
#define STEP(i) from##i += position * steps##i.at[axis];
#define READ(i) if (WIDE##i || p == 0) words##i[WIDE##i ? p : 0] = words<INNER##i>(a##i + from##i);
#define FOLD(i)                                                                                             \
    fold##i::State state##i = fold##i::start();                                                             \
    _Pragma("unroll") for (int p = 0; p < PER; ++p) {                                                       \
        const Index k = place(p);                                                                           \
        if (!inside || k >= count) continue;                                                                \
        _Pragma("unroll") for (int q = 0; q < VECTOR; ++q)                                                  \
            state##i = fold##i::combine(state##i, fold##i::element(FEED##i(p, q), k + q));                  \
    }                                                                                                       \
    state##i = over_row(state##i, Combine##i(), share);                                                     \
    const Total##i total##i = Total##i(fold##i::finish(state##i, count));

#define GOAL(i) Index to##i = place##i;
#define STEP_INTO(i) to##i += position * into##i.at[axis];
#define ROUND(i)                                                                                            \
    if constexpr (WHOLE##i) {                                                                               \
        Words<R##i> found##i;                                                                               \
        _Pragma("unroll") for (int q = 0; q < VECTOR; ++q) found##i.at[q] = RESULT##i(p, q);                \
        _Pragma("unroll") for (int q = 0; q < VECTOR; q += OUTER##i)                                        \
            *(Words<R##i, OUTER##i>*)(y##i + to##i + q) = *(const Words<R##i, OUTER##i>*)(found##i.at + q); \
    }
#define ROUND_ONE(i)                                  \
    if constexpr (!WHOLE##i) {                        \
        constexpr int p = 0, q = 0;                   \
        if (share == 0) y##i[place##i] = RESULT##i(p, q); \
    }

// All threads of a row get what they have together. Each reduction has shared memory of its own.
template <typename State, typename Combine>
__device__ __forceinline__ State over_row(State own, Combine combine, int share)
{
    if constexpr (ALONG) {
#pragma unroll
        for (int other = (SHARES < 32 ? SHARES : 32) / 2; other; other /= 2)
            own = combine(own, shuffle_xor(own, other));
        if constexpr (SHARES > 32) {
            __shared__ State parts[THREADS / 32];
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
            __syncthreads();
            const int first = threadIdx.x / SHARES * (SHARES / 32);
            own = parts[first];
#pragma unroll
            for (int i = 1; i < SHARES / 32; ++i) own = combine(own, parts[first + i]);
        }
    } else if constexpr (SHARES > 1) {
        __shared__ State parts[SHARES][ROWS];
        const int row = threadIdx.x % ROWS;
        parts[share][row] = own;
        __syncthreads();
        own = parts[0][row];
#pragma unroll
        for (int i = 1; i < SHARES; ++i) own = combine(own, parts[i][row]);
    }
    return own;
}

extern "C" __global__ void __launch_bounds__(THREADS)
row_chain(Index rows, Index count, Ints sizes, Ints factors, Ints shifts, Folds folds, Folds fold_factors,
          Folds fold_shifts RESULTS(WRITES) OPERANDS(READS))
{
    const int share = ALONG ? threadIdx.x % SHARES : threadIdx.x / ROWS;
    const Index row = blockIdx.x * (Index)ROWS + (ALONG ? threadIdx.x / SHARES : threadIdx.x % ROWS);
    const bool inside = row < rows;
    const auto place = [=](int p) { return (p * SHARES + share) * (Index)VECTOR; };
    RESULTS(TO)
    OPERANDS(OFFSET)
    for_each_axis(inside ? row : 0, sizes, factors, shifts, [&](int axis, Index position) {
        RESULTS(MOVE_TO)
        OPERANDS(MOVE)
    });
    grid_dependency_sync();
    OPERANDS(WORDS)
#pragma unroll
    for (int p = 0; p < PER; ++p) {
        const Index k = place(p);
        if (!inside || (p && k >= count)) continue;
        OPERANDS(BEGIN)
        for_each_axis<FOLDED>(k < count ? k : 0, folds, fold_factors, fold_shifts, [&](int axis, Index position) {
            OPERANDS(STEP)
        });
        OPERANDS(READ)
    }
    FOLDS(FOLD)
    if (!inside) return;
    RESULTS(ROUND_ONE)
#pragma unroll
    for (int p = 0; p < PER; ++p) {
        const Index k = place(p);
        if (k >= count) continue;
        RESULTS(GOAL)
        for_each_axis<FOLDED>(k, folds, fold_factors, fold_shifts, [&](int axis, Index position) {
            RESULTS(STEP_INTO)
        });
        RESULTS(ROUND)
    }
}
