// Rows that are combined where their indices are equal (edges of a graph at its nodes), of one or several tensors: what
// a chain of elementwise operators computes for row `edge` goes to row `node` of the result, where another chain reads
// the totals. Rows come by node, and in their order: `sorted` has pairs of a node and an edge, as sort_rows.cu writes
// them. Negative nodes count from the end; those out of range get nothing.
//
// COLUMNS adjacent lanes have VECTOR adjacent elements of a row each, SHARES groups of lanes share a node's edges, and
// so do all warps of a block if WHOLE. Operands are read where they are, also through indices, as in moved.cu: element
// i, with i = edge * row + the sum of position * stride along RANK axes, or index[edge * slot] * step instead of
// edge * row where INDEXED.
//
// Before, EARLY totals of the same rows are computed, one after the other, of which the elements of later ones may be
// computed: the chains read value0[q], ...
//
// Generated: Y, the type of results, A, that of the arithmetic; A0, A1, ... those of operands, L0, ... those of their
// indices, INNER0, ... as in elementwise.cu; OPERANDS(X), which is X(0) X(1) ...; FOLDS, the number of totals;
// ELEMENTS(X, q), which is X(0, the element that is added to the first total) X(1, ...); start() and combine(a, b); and
// for the chain behind B0, ..., BEHIND(X) and RESULT(q), which reads total[0][q], ...; STAGES(X), which is X(s, what
// is added, the value that rows read, which reads sum[q]), ... with Stage0::start() and combine(a, b), ....

#include "elementwise/moved_words.cuh"
#include "move/axes.cuh"
#include "move/sorted_pairs.cuh"
#include "ptx/pdl.cuh"
#include "ptx/warp.cuh"

constexpr int WARPS = 8, OF_WARP = 32 / (COLUMNS * SHARES), ALL_SHARES = SHARES * (WHOLE ? WARPS : 1);
static_assert(!WHOLE || (OF_WARP == 1 && EARLY == 0), "one node, and totals of all warps");

#define PARAMETER(i) , const A##i *a##i, Index row##i, Ints strides##i, const L##i *index##i, Index slot##i, Index size##i, Index step##i
#define PARAMETER_BEHIND(i) , const B##i *b##i, Index line##i, Ints places##i
#define OFFSET(i) Index offset##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define OFFSET_BEHIND(i) Index place##i = node * line##i;
#define MOVE_BEHIND(i) place##i += position * places##i.at[axis];
#define FIND(i) const Index entry##i = INDEXED##i ? entry_at(index##i[edge * slot##i], size##i, step##i) : edge * row##i;
#define READ(i) const Words<A##i> words##i = words_or_zeros<INNER##i>(a##i + offset##i + entry##i, entry##i >= 0);
#define ADD(f, element) total[f][q] = combine(total[f][q], A(element));
#define STAGE(s, element, result) \
    A value##s[VECTOR]; \
    { \
        A sum[VECTOR]; \
        for (int q = 0; q < VECTOR; ++q) sum[q] = Stage##s::start(); \
        edges.visit([&](Index edge) { \
            OPERANDS(FIND) \
            OPERANDS(READ) \
            for (int q = 0; q < VECTOR; ++q) sum[q] = Stage##s::combine(sum[q], A(element)); \
        }); \
        for (int q = 0; q < VECTOR; ++q) \
            for (int other = COLUMNS * SHARES / 2; other >= COLUMNS; other /= 2) \
                sum[q] = Stage##s::combine(sum[q], shuffle_xor(sum[q], other)); \
        for (int q = 0; q < VECTOR; ++q) value##s[q] = is_inside ? A(result) : A(0); \
    }

// How many pairs are before each of two nodes. All lanes of a warp ask for the same nodes.
__device__ __forceinline__ void find(const Pair* sorted, int count, const int (&nodes)[2], int (&found)[2])
{
    const int lane = threadIdx.x % 32;
    int last[2] = {count, count};
    found[0] = found[1] = 0;
    while (found[0] < last[0] || found[1] < last[1]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int step = (last[i] - found[i] + 31) / 32, probe = found[i] + (lane + 1) * step - 1;
            const bool is_before = probe < last[i] && sorted[probe].index < nodes[i];
            found[i] += __popc(__ballot_sync(~0u, is_before)) * step;
            last[i] = max(found[i], min(found[i] + step - 1, last[i]));
        }
    }
}

// How many of the pairs from `first` to `last` are before a node, and `first`.
__device__ __forceinline__ int find_between(const Pair* sorted, int first, int last, int node)
{
    while (first < last) {
        const int middle = first + (last - first) / 2;
        if (sorted[middle].index < node) first = middle + 1;
        else last = middle;
    }
    return first;
}

struct Edges {  // those of a thread: of its node, and of the same one counted from the end
    const Pair* sorted;
    int begin[2], end[2];

    template <typename Visit> __device__ __forceinline__ void visit(Visit visit) const
    {
#pragma unroll 4
        for (int k = begin[0]; k < end[0]; k += ALL_SHARES) visit(Index(sorted[k].place));
        for (int k = begin[1]; k < end[1]; k += ALL_SHARES) visit(Index(sorted[k].place));
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32)
segments(Y* y, Index line, Ints strides, const long long* pairs, Index count, Index nodes, Index inner, Ints sizes,
         Ints factors, Ints shifts OPERANDS(PARAMETER) BEHIND(PARAMETER_BEHIND))
{
    const Pair* sorted = (const Pair*)pairs;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Index first = (WHOLE ? blockIdx.x : blockIdx.x * (Index)WARPS + warp) * OF_WARP;  // node of this warp
    const Index node = first + lane / (COLUMNS * SHARES);
    const Index column = (blockIdx.y * (Index)COLUMNS + lane % COLUMNS) * VECTOR;
    const int share = lane / COLUMNS % SHARES + (WHOLE ? warp * SHARES : 0);
    const bool is_inside = node < nodes && column < inner;
    Index offset = node * line;
    OPERANDS(OFFSET)
    BEHIND(OFFSET_BEHIND)
    for_each_axis(column, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        OPERANDS(MOVE)
        BEHIND(MOVE_BEHIND)
    });
    A total[FOLDS][VECTOR];
#pragma unroll
    for (int f = 0; f < FOLDS; ++f)
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) total[f][q] = start();
    grid_dependency_sync();
    const Index wraps = count > 0 && sorted[0].index < 0 ? nodes : 0;  // pairs of negative nodes come first
    int begin[2] = {}, end[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (i && !wraps) break;
        const int least = first - (i ? wraps : 0), own = node - (i ? wraps : 0);
        int ends[2];
        find(sorted, count, {least, least + OF_WARP}, ends);
        begin[i] = OF_WARP > 1 ? find_between(sorted, ends[0], ends[1], own) : ends[0];
        end[i] = OF_WARP > 1 ? find_between(sorted, begin[i], ends[1], own + 1) : ends[1];
        if (!is_inside) end[i] = begin[i];
    }
    const Edges edges = {sorted, {begin[0] + share, begin[1] + share}, {end[0], end[1]}};
    STAGES(STAGE)
    edges.visit([&](Index edge) {
        OPERANDS(FIND)
        OPERANDS(READ)
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) { ELEMENTS(ADD, q) }
    });
#pragma unroll
    for (int f = 0; f < FOLDS; ++f)
#pragma unroll
        for (int q = 0; q < VECTOR; ++q)
#pragma unroll
            for (int other = COLUMNS * SHARES / 2; other >= COLUMNS; other /= 2)
                total[f][q] = combine(total[f][q], shuffle_xor(total[f][q], other));
    if constexpr (WHOLE) {
        __shared__ A parts[WARPS][FOLDS][VECTOR][COLUMNS];
#pragma unroll
        for (int f = 0; f < FOLDS; ++f)
#pragma unroll
            for (int q = 0; q < VECTOR; ++q)
                if (lane < COLUMNS) parts[warp][f][q][lane] = total[f][q];
        __syncthreads();
        if (warp || lane >= COLUMNS) return;
#pragma unroll
        for (int f = 0; f < FOLDS; ++f)
#pragma unroll
            for (int q = 0; q < VECTOR; ++q)
#pragma unroll
                for (int other = 1; other < WARPS; ++other)
                    total[f][q] = combine(total[f][q], parts[other][f][q][lane]);
    }
    if (share || !is_inside) return;
    Words<Y> results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) results.at[q] = RESULT(q);
    *(Words<Y>*)(y + offset) = results;
}
