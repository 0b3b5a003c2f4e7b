// Reductions of rows, each of what elementwise operators compute from operands and from the reductions before it,
// and elementwise operators behind the last one, in one pass over memory.
//
// SHARES threads share a row, and keep PER words of VECTOR adjacent elements each. ALONG: these are elements of a row,
// and so are those of adjacent threads; otherwise a thread has VECTOR rows, and adjacent threads those beside them.
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

constexpr int BESIDE = THREADS / SHARES;  // threads of a block that share no row
constexpr int ADJACENT = ALONG ? VECTOR : 1, COLUMNS = ALONG ? 1 : VECTOR;

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
    fold##i::State state##i[COLUMNS];                                                                       \
    _Pragma("unroll") for (int q = 0; q < COLUMNS; ++q) state##i[q] = fold##i::start();                     \
    _Pragma("unroll") for (int p = 0; p < PER; ++p) {                                                       \
        const Index k = place(p);                                                                           \
        if (!inside || k >= count) continue;                                                                \
        _Pragma("unroll") for (int q = 0; q < VECTOR; ++q) {                                                \
            const auto element = fold##i::element(FEED##i(p, q), k + (ALONG ? q : 0));                      \
            state##i[COLUMN(q)] = fold##i::combine(state##i[COLUMN(q)], element);                           \
        }                                                                                                   \
    }                                                                                                       \
    over_rows(state##i, Combine##i(), share);                                                               \
    Total##i total##i[COLUMNS];                                                                             \
    _Pragma("unroll") for (int q = 0; q < COLUMNS; ++q)                                                     \
        total##i[q] = Total##i(fold##i::finish(state##i[q], count));
#define COLUMN(q) (ALONG ? 0 : (q))
#define GOAL(i) Index to##i = place##i;
#define STEP_INTO(i) to##i += position * into##i.at[axis];
#define ROUND(i)                                                                                            \
    if constexpr (WHOLE##i) {                                                                               \
        Words<R##i> found##i;                                                                               \
        _Pragma("unroll") for (int q = 0; q < VECTOR; ++q) found##i.at[q] = RESULT##i(p, q);                \
        _Pragma("unroll") for (int q = 0; q < VECTOR; q += OUTER##i)                                        \
            *(Words<R##i, OUTER##i>*)(y##i + to##i + q) = *(const Words<R##i, OUTER##i>*)(found##i.at + q); \
    }
#define ROUND_ONE(i)                                                                                        \
    if (!WHOLE##i && share == 0) {                                                                          \
        constexpr int p = 0;                                                                                \
        Words<R##i, COLUMNS> found##i;                                                                      \
        _Pragma("unroll") for (int q = 0; q < COLUMNS; ++q) found##i.at[q] = RESULT##i(p, q);               \
        constexpr int OUTER = ALONG ? 1 : OUTER##i;                                                         \
        _Pragma("unroll") for (int q = 0; q < COLUMNS; q += OUTER)                                          \
            *(Words<R##i, OUTER>*)(y##i + place##i + q) = *(const Words<R##i, OUTER>*)(found##i.at + q);    \
    }

// All threads of a row get what they have together. Each reduction has shared memory of its own.
template <typename State, typename Combine>
__device__ __forceinline__ void over_rows(State (&own)[COLUMNS], Combine combine, int share)
{
    if constexpr (ALONG) {
#pragma unroll
        for (int other = (SHARES < 32 ? SHARES : 32) / 2; other; other /= 2)
            own[0] = combine(own[0], shuffle_xor(own[0], other));
        if constexpr (SHARES > 32) {
            __shared__ State parts[THREADS / 32];
            if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own[0];
            __syncthreads();
            const int first = threadIdx.x / SHARES * (SHARES / 32);
            own[0] = parts[first];
#pragma unroll
            for (int i = 1; i < SHARES / 32; ++i) own[0] = combine(own[0], parts[first + i]);
        }
    } else if constexpr (SHARES > 1) {
        constexpr int NEXT = BESIDE < 32 ? BESIDE : 32, PARTS = THREADS / BESIDE * NEXT / 32;  // one of each warp, if it has all
        const int part = threadIdx.x / 32 * NEXT / BESIDE, beside = threadIdx.x % BESIDE;
        __shared__ State parts[COLUMNS][PARTS][BESIDE];
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
#pragma unroll
            for (int other = NEXT; other < 32; other *= 2) own[q] = combine(own[q], shuffle_xor(own[q], other));
            if (threadIdx.x % 32 < NEXT) parts[q][part][beside] = own[q];
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < COLUMNS; ++q) {
            own[q] = parts[q][0][beside];
#pragma unroll
            for (int i = 1; i < PARTS; ++i) own[q] = combine(own[q], parts[q][i][beside]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
row_chain(Index rows, Index count, Ints sizes, Ints factors, Ints shifts, Folds folds, Folds fold_factors,
          Folds fold_shifts RESULTS(WRITES) OPERANDS(READS))
{
    const int share = ALONG ? threadIdx.x % SHARES : threadIdx.x / BESIDE;
    const int beside = ALONG ? threadIdx.x / SHARES : threadIdx.x % BESIDE;
    const Index row = (blockIdx.x * (Index)BESIDE + beside) * COLUMNS;
    const bool inside = row < rows;
    const auto place = [=](int p) { return (p * SHARES + share) * (Index)ADJACENT; };
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
