// Scans along lines (cumulative sums and products), each of what elementwise operators compute from operands and
// from the scans before it, and elementwise operators behind the last one, in one pass over memory.
//
// SHARES threads share a line; each has VECTOR elements of a tile of it, one tile after another. ALONG: the elements
// of a line are adjacent, and so are these threads; otherwise lines are side by side, and so are threads of several.
//
// Operands are read where they are: an element has one place along RANK axes of lines and one on its line.
//
// Generated: Y, the type of results; A0, A1, ... those of the operands; OPERANDS(X), which is X(0) X(1) ..., and
// SCANS(X) likewise; for each scan, Scan0 (Sum, its type; start(), the neutral one; EXCLUSIVE; and a call, which
// combines two), FEED0(q), what it adds up; and RESULT(q). STORED, INNER0, ...: how many adjacent elements are
// written or read at once. REVERSE; THREADS of a block.

#include "elementwise/words.cuh"
#include "move/axes.cuh"
#include "ptx/pdl.cuh"

constexpr int LINES = THREADS / SHARES;  // of a block

#define PARAMETER(i) , const A##i *a##i, Ints strides##i, Index step##i, Index origin##i
#define OFFSET(i) Index offset##i = origin##i;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define READ(i) Words<A##i> ahead##i = read<INNER##i>(a##i + offset##i, step##i, first, size, count);
#define ADVANCE(i) const Words<A##i> words##i = ahead##i;
#define READ_NEXT(i) ahead##i = read<INNER##i>(a##i + offset##i, step##i, next, size, next_count);
#define TOTAL(i) Scan##i::Sum total##i = Scan##i::start();
#define SCAN(i)                                                                                            \
    Scan##i::Sum sums##i[VECTOR];                                                                          \
    _Pragma("unroll") for (int q = 0; q < VECTOR; ++q)                                                     \
        sums##i[q] = q < count ? Scan##i::Sum(FEED##i(q)) : Scan##i::start();                              \
    scan<Scan##i, i>(sums##i, total##i, share, half);

// Reads the elements of a thread, zeros behind the end of the line.
template <int INNER, typename A>
__device__ __forceinline__ Words<A> read(const A* line, Index step, Index first, Index size, int count)
{
    Words<A> found;
    memset(&found, 0, sizeof(found));
#pragma unroll
    for (int q = 0; q < VECTOR; q += INNER) {
        if (q >= count) continue;
        const Index k = REVERSE ? size - 1 - first - q : first + q;
        *(Words<A, INNER>*)(found.at + q) = *(const Words<A, INNER>*)(line + k * step);
    }
    return found;
}

// Returns what precedes the elements of this thread; `total` becomes that of the tile.
template <typename Scan, int NUMBER>
__device__ __forceinline__ typename Scan::Sum precede(typename Scan::Sum own, typename Scan::Sum& total, int share,
                                                      int half)
{
    using Sum = typename Scan::Sum;
    constexpr Scan combine;
    if constexpr (ALONG) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int distance = 1; distance < (SHARES < 32 ? SHARES : 32); distance *= 2) {
            const bool follows = share % 32 >= distance;
            const Sum other = __shfl_sync(~0u, own, follows ? lane - distance : lane);
            if (follows) own = combine(other, own);
        }
        const Sum left = __shfl_sync(~0u, own, share ? lane - 1 : lane);
        Sum before = total;
        if constexpr (SHARES <= 32) {
            total = combine(before, __shfl_sync(~0u, own, lane | (SHARES - 1)));
            return share ? combine(before, left) : before;
        }
        constexpr int WARPS = SHARES / 32;  // of a line
        __shared__ Sum parts[2][THREADS / 32];
        if (lane == 31) parts[half][threadIdx.x / 32] = own;
        __syncthreads();
#pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            if (other == share / 32) before = total;
            total = combine(total, parts[half][threadIdx.x / SHARES * WARPS + other]);
        }
        return lane ? combine(before, left) : before;
    } else if constexpr (SHARES > 1) {
        // Of two tiles in a row, each has its own; every thread has read those before the last ones.
        __shared__ Sum parts[2][SHARES][LINES];
        const int line = threadIdx.x % LINES;
        parts[half][share][line] = own;
        __syncthreads();
        Sum before = total;
#pragma unroll
        for (int other = 0; other < SHARES; ++other) {
            if (other == share) before = total;
            total = combine(total, parts[half][other][line]);
        }
        return before;
    } else {
        const Sum before = total;
        total = combine(before, own);
        return before;
    }
}

// Scans the elements of a thread in place.
template <typename Scan, int NUMBER>
__device__ __forceinline__ void scan(typename Scan::Sum (&sums)[VECTOR], typename Scan::Sum& total, int share,
                                     int half)
{
    using Sum = typename Scan::Sum;
    constexpr Scan combine;
    Sum own = sums[0];
#pragma unroll
    for (int q = 1; q < VECTOR; ++q) own = combine(own, sums[q]);
    Sum before = precede<Scan, NUMBER>(own, total, share, half);
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const Sum next = combine(before, sums[q]);
        sums[q] = Scan::EXCLUSIVE ? before : next;
        before = next;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
scan_chain(Y* y, Ints strides, Index step, Index lines, Index size, Ints sizes, Ints factors,
           Ints shifts OPERANDS(PARAMETER))
{
    const int share = ALONG ? threadIdx.x % SHARES : threadIdx.x / LINES;
    const Index line = blockIdx.x * (Index)LINES + (ALONG ? threadIdx.x / SHARES : threadIdx.x % LINES);
    const bool inside = line < lines;
    Index offset = 0;
    OPERANDS(OFFSET)
    for_each_axis(inside ? line : 0, sizes, factors, shifts, [&](int axis, Index position) {
        offset += position * strides.at[axis];
        OPERANDS(MOVE)
    });
    grid_dependency_sync();
    SCANS(TOTAL)
    const auto count_of = [=](Index first) {
        return inside && first < size ? (int)min(size - first, (Index)VECTOR) : 0;
    };
    Index first = share * VECTOR;
    int half = 0, count = count_of(first);
    OPERANDS(READ)
    for (Index tile = 0; tile < size; tile += SHARES * VECTOR) {
        const Index next = first + SHARES * VECTOR;  // is on its way meanwhile
        const int next_count = count_of(next);
        OPERANDS(ADVANCE)
        OPERANDS(READ_NEXT)
        SCANS(SCAN)
        Words<Y> results;
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) results.at[q] = Y(RESULT(q));
#pragma unroll
        for (int q = 0; q < VECTOR; q += STORED) {
            if (q >= count) continue;
            const Index k = REVERSE ? size - 1 - first - q : first + q;
            *(Words<Y, STORED>*)(y + offset + k * step) = *(const Words<Y, STORED>*)(results.at + q);
        }
        first = next, count = next_count, half ^= 1;
    }
}
