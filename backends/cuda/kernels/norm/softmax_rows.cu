// exp(x - max) / sum(exp(x - max)) of every row; LOGARITHM gives x - max - log(sum) instead. The maximum is
// subtracted so that nothing overflows. Either a block sums up a row, and reads it again while it is in the
// cache. Or, for few rows, several blocks share one: `peaks` sums up each part, and in `softmax_rows` every
// block adds the sums of all parts of its row, always in the same order.
//
// X is the type of the elements, R that of results, A that of the arithmetic, I that of positions. Compile-time: LOGARITHM;
// SHARED, whether a row has several parts; those of norm_parts.cuh.

#include "reduce/block.cuh"
#include "ptx/pdl.cuh"
#include "norm/norm_parts.cuh"
#include "norm/logsumexp.cuh"
#include "norm/softmax.cuh"

// Returns the number to subtract from exponents: 0 for a maximum of -infinity, since -infinity - -infinity is NaN.
__device__ __forceinline__ A base(A top) { return top == -A(INFINITY) ? A(0) : top; }

// Adds the first `words` words.
__device__ __forceinline__ void add(Peak& own, const Words<X> (&batch)[BATCH], int words)
{
    A top = own.top, sum = 0;
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if (k < words) top = Larger()(top, A(batch[k].at[e]));
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if (k < words) sum += exp(A(batch[k].at[e]) - base(top));
    own = {top, own.sum * scale(own.top, top) + sum};
}

// Returns this thread's state of a part of the row x.
__device__ __forceinline__ Peak sum_up(const X* x, const Part& part)
{
    Peak own = {-A(INFINITY), 0};
    for (I at = part.first + threadIdx.x * VECTOR; at < part.last; at += BATCH * STEP) {
        Words<X> batch[BATCH];
        const int words = read(batch, x, at, part.last, [](I i) { return i; });
        add(own, batch, words);
    }
    return own;
}

// Merges the states of the threads of a block.
__device__ __forceinline__ Peak over_block(const Peak& own)
{
    const A top = over_block(own.top, Larger());
    return {top, over_block(own.sum * scale(own.top, top), Plus())};
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
peaks(const X* x, Peak* sums, I count, Parts parts)
{
    grid_dependency_sync();
    const Part part = part_of(blockIdx.x, parts, count);
    const Peak all = over_block(sum_up(x + part.group * count, part));
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// `sums` are those of all parts, if a row is SHARED.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
softmax_rows(const X* x, const Peak* sums, R* y, I count, Parts parts)
{
    grid_dependency_sync();
    // Starts with the elements that were summed up last: of a long row, only these are still in the cache.
    const Part part = part_of(gridDim.x - 1 - blockIdx.x, parts, count);
    x += part.group * count;
    y += part.group * count;
    Peak own = {-A(INFINITY), 0};
    if (SHARED) {
        for (I i = threadIdx.x; i < parts.count; i += THREADS)
            own = merged(own, sums[part.group * parts.count + i]);
    } else {
        own = sum_up(x, part);
    }
    const Peak all = over_block(own);
    for (I at = part.first + threadIdx.x * VECTOR; at < part.last; at += BATCH * STEP) {
        Words<X> batch[BATCH];
        const int words = read(batch, x, at, part.last, [](I i) { return i; });
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            if (k >= words) break;
            Words<R> results;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                results.at[e] = R(A(X(result(A(batch[k].at[e]), all.top, all.sum))));
            *(Words<R>*)(y + at + k * STEP) = results;
        }
    }
}
