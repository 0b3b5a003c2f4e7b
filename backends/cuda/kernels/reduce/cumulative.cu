// Cumulative sums (scans) along an axis of which there are few lines; see scan_chain.cu for others. T is the type of the elements, A that of the arithmetic. Generated:
// combine(a, b), and START, its identity.
//
// Long lines are split into chunks. Then one launch computes the total of every chunk, and the next one
// starts each chunk with the totals of those before it, added in a fixed order.
//
// Compile-time: WARPS of a block; REVERSE, EXCLUSIVE; RANK, where the axis is read at run time.

#include "reduce/block.cuh"
#include "reduce/scan.cuh"

constexpr int ITEMS = 8;  // neighbours that a thread reads at once

struct Ints {
    long long at[RANK];
};

struct Lines {
    long long size, inner;  // elements of a line, and the distance of neighbours on it
    long long chunk;        // elements of a chunk
    long long chunks;       // of a line
    __device__ __forceinline__ long long operator()(long long outer, long long k) const
    {
        return (outer * size + (REVERSE ? size - 1 - k : k)) * inner;
    }
};

struct Combine {
    __device__ __forceinline__ A operator()(A a, A b) const { return combine(a, b); }
};

// Scans elements begin <= k < end of a line, starting with `total`.
__device__ __forceinline__ void go_along(const T* x, T* y, const Lines& l, long long outer,
                                         long long begin, long long end, A total)
{
    for (long long k = begin; k < end; k += ITEMS) {
        A values[ITEMS];
#pragma unroll
        for (int q = 0; q < ITEMS; ++q)
            if (k + q < end) values[q] = A(x[l(outer, k + q)]);
#pragma unroll
        for (int q = 0; q < ITEMS; ++q) {
            if (k + q >= end) break;
            const long long at = l(outer, k + q);
            if (EXCLUSIVE) y[at] = T(total);
            total = combine(total, values[q]);
            if (!EXCLUSIVE) y[at] = T(total);
        }
    }
}

// ── lines of any stride: one thread per chunk ──────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS)
total_columns(const T* x, A* totals, long long count, Lines l)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const long long row = i / l.inner, outer = row / l.chunks, c = row - outer * l.chunks;
    const long long end = min(l.size, (c + 1) * l.chunk);
    A total = START;
    for (long long k = c * l.chunk; k < end; ++k)
        total = combine(total, A(x[l(outer, k) + i - row * l.inner]));
    totals[i] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate_columns(const T* x, const A* totals, T* y, long long count, Lines l)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const long long row = i / l.inner, outer = row / l.chunks, c = row - outer * l.chunks;
    const long long column = i - row * l.inner;
    A before = START;
    for (long long other = 0; other < c; ++other)
        before = combine(before, totals[(row - c + other) * l.inner + column]);
    const long long end = min(l.size, (c + 1) * l.chunk);
    go_along(x + column, y + column, l, outer, c * l.chunk, end, before);
}

// ── contiguous lines: one block per chunk ──────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS)
total_rows(const T* x, A* totals, Lines l)
{
    const long long outer = blockIdx.x / l.chunks, c = blockIdx.x - outer * l.chunks;
    const long long end = min(l.size, (c + 1) * l.chunk);
    A total = START;
    for (long long k = c * l.chunk + threadIdx.x; k < end; k += THREADS)
        total = combine(total, A(x[l(outer, k)]));
    total = over_block(total, Combine());
    if (!threadIdx.x) totals[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate_rows(const T* x, const A* totals, T* y, Lines l)
{
    const long long outer = blockIdx.x / l.chunks, c = blockIdx.x - outer * l.chunks;
    const long long end = min(l.size, (c + 1) * l.chunk);
    A before = START;
    for (long long other = threadIdx.x; other < c; other += THREADS)
        before = combine(before, totals[blockIdx.x - c + other]);
    before = over_block(before, Combine());
    for (long long tile = c * l.chunk; tile < end; tile += THREADS * ITEMS) {
        const long long first = tile + threadIdx.x * ITEMS;
        A own = START;
#pragma unroll
        for (int q = 0; q < ITEMS; ++q)
            if (first + q < end) own = combine(own, A(x[l(outer, first + q)]));
        go_along(x, y, l, outer, first, min(end, first + ITEMS), up_to(own, before, Combine()));
    }
}

// ── an axis that is known only at run time: one thread per line ────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS)
accumulate(const T* x, const I* axis, T* y, long long size, Ints sizes)
{
    const int along = int(*axis) + (*axis < 0 ? RANK : 0);
    if (along < 0 || along >= RANK || size == 0) return;
    Lines l = {sizes.at[along], 1, sizes.at[along], 1};
    for (int a = along + 1; a < RANK; ++a) l.inner *= sizes.at[a];
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= size / l.size) return;
    const long long outer = i / l.inner, column = i - outer * l.inner;
    go_along(x + column, y + column, l, outer, 0, l.size, START);
}
