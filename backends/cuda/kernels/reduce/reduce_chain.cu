// A chain of elementwise operators, reduced over some axes, and another chain over the results, in one pass over
// memory. SHARES threads share a result. ALONG: the axis whose elements are adjacent is reduced, and a thread
// computes VECTOR adjacent elements of it; otherwise a thread has VECTOR adjacent results. It requests AHEAD of its
// rows, or vectors of its row, before it combines the first.
//
// Operands are read where they are, also through nodes that move elements, as in moved.cu: element i, with
// i = origin + the sum of position * stride + an entry of a table; the positions along RANK axes that stay and
// FOLDED axes that are reduced.
//
// Generated: Y, the type of results, A, that of the arithmetic; A0, A1, ... those of the operands; chain(a0, a1, ...),
// one element; OPERANDS(X), which is X(0) X(1) ...; ELEMENT(q), the call for element q; INNER0, ... and TABLED0, ...
// as in elementwise.cu and moved.cu; State, start(), element(x, index), combine(a, b) and finish(a, count) as in
// reduce.cu; and for the chain behind, after(result, b0, b1, ...), B0, ..., BEHIND(X) and RESULT(a, q).

#include "elementwise/moved_words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

constexpr int THREADS = 256, OF_BLOCK = THREADS / SHARES;
constexpr int ADJACENT = ALONG ? VECTOR : 1, COLUMNS = ALONG ? 1 : VECTOR;

struct Folds {  // outermost first
    Index at[FOLDED];
};

#define PARAMETER(i) \
    , const A##i *a##i, Ints strides##i, Folds steps##i, const int *table##i, Ints slots##i, Folds slot_steps##i, Index origin##i
#define PARAMETER_BEHIND(i) , const B##i *b##i, Ints places##i
#define OFFSET(i) Index offset##i = origin##i, slot##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis], slot##i += position * slots##i.at[axis];
#define OFFSET_BEHIND(i) Index place##i = 0;
#define MOVE_BEHIND(i) place##i += position * places##i.at[axis];
#define BEGIN(i) Index from##i = offset##i, entry##i = slot##i;
#define STEP(i) from##i += position * steps##i.at[axis], entry##i += position * slot_steps##i.at[axis];
#define LOOK(i) const int found##i = TABLED##i ? table##i[entry##i] : 0;
#define WORDS(i) Words<A##i> words##i[AHEAD];
#define READ(i) words##i[row] = words_or_zeros<INNER##i>(a##i + from##i + found##i, found##i >= 0);

extern "C" __global__ void __launch_bounds__(THREADS)
reduce_chain(Y* y, Ints strides, Index results, Ints sizes, Ints factors, Ints shifts, Index count, Folds folds,
             Folds fold_factors, Folds fold_shifts OPERANDS(PARAMETER) BEHIND(PARAMETER_BEHIND))
{
    const int share = ALONG ? threadIdx.x % SHARES : threadIdx.x / OF_BLOCK;
    const int column = ALONG ? threadIdx.x / SHARES : threadIdx.x % OF_BLOCK;
    const Index i = (blockIdx.x * (Index)OF_BLOCK + column) * COLUMNS;
    Index offset = 0;
    OPERANDS(OFFSET)
    BEHIND(OFFSET_BEHIND)
    for_each_axis(i, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        OPERANDS(MOVE)
        BEHIND(MOVE_BEHIND)
    });
    grid_dependency_sync();
    State state[COLUMNS];
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q) state[q] = start();
    if (i < results) {
        for (Index first = share * ADJACENT; first < count; first += AHEAD * SHARES * ADJACENT) {
            OPERANDS(WORDS)
#pragma unroll
            for (int row = 0; row < AHEAD; ++row) {
                const Index next = first + row * (SHARES * ADJACENT), k = next < count ? next : count - ADJACENT;
                OPERANDS(BEGIN)
                for_each_axis<FOLDED>(k, folds, fold_factors, fold_shifts, [&](int axis, Index position) {
                    OPERANDS(STEP)
                });
                OPERANDS(LOOK)
                OPERANDS(READ)
            }
#pragma unroll
            for (int row = 0; row < AHEAD; ++row) {
                const Index k = first + row * (SHARES * ADJACENT);
                if (k < count)
#pragma unroll
                    for (int q = 0; q < VECTOR; ++q)
                        state[ALONG ? 0 : q] =
                            combine(state[ALONG ? 0 : q], element(A(ELEMENT(q)), k + (ALONG ? q : 0)));
            }
        }
    }
    if constexpr (ALONG) {
#pragma unroll
        for (int other = (SHARES < 32 ? SHARES : 32) / 2; other; other /= 2)
            state[0] = combine(state[0], shuffle_xor(state[0], other));
    }
    // Neighbours have exchanged what they have if they are lanes of a warp.
    if constexpr (ALONG && SHARES > 32) {
        __shared__ State shares[THREADS];
        shares[threadIdx.x] = state[0];
        __syncthreads();
        if (share == 0)
#pragma unroll
            for (int k = 32; k < SHARES; k += 32) state[0] = combine(state[0], shares[threadIdx.x + k]);
    }
    if constexpr (!ALONG && SHARES > 1) {
        __shared__ State shares[COLUMNS][THREADS];
#pragma unroll
        for (int half = SHARES / 2; half; half /= 2) {
            if (share >= half && share < 2 * half)
#pragma unroll
                for (int q = 0; q < COLUMNS; ++q) shares[q][threadIdx.x] = state[q];
            __syncthreads();
            if (share < half)
#pragma unroll
                for (int q = 0; q < COLUMNS; ++q)
                    state[q] = combine(state[q], shares[q][threadIdx.x + half * OF_BLOCK]);
        }
    }
    if (share || i >= results) return;
#pragma unroll
    for (int q = 0; q < COLUMNS; ++q) {
        const auto total = finish(state[q], A(count));
        y[offset + q] = RESULT(total, q);
    }
}
