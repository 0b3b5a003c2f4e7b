// The k greatest (or least) elements of every line of [outer][size][inner], in order; ties go to the lower
// index; NaN is the greatest. T is the type of the elements, A that of comparisons.
//
// `top_k` computes the rank of one element per thread: the number of others that come before it. Long lines are
// first reduced to candidates: `thin_out` finds the k-th element of a chunk of a line digit by digit (radix select), and
// keeps the elements up to it; then likewise of what all chunks of a line have left.
//
// Compile-time: LARGEST; WARPS of a block.

#include "reduce/block.cuh"
#include "reduce/scan.cuh"
#include "reduce/sort_keys.cuh"

template <typename E> __device__ __forceinline__ bool is_before(E a, E b)  // a before b, not equal
{
    const bool nan_a = a != a, nan_b = b != b;
    if (nan_a || nan_b) return nan_a != nan_b && nan_a == LARGEST;
    return LARGEST ? a > b : a < b;
}

constexpr int AT_ONCE = 8;  // elements that a thread has loads in flight for

// Ranks the elements of lines [outer][size][inner]. The candidates of long lines have their original
// indices in `origins`.
extern "C" __global__ void __launch_bounds__(THREADS)
top_k(const T* x, const int* origins, T* values, long long* places, long long count, int size,
      int k, int inner)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const long long row = i / inner, outer = row / size;
    const int own = row - outer * size;
    const T* line = x + outer * size * inner + i - row * inner;
    const A value = A(line[(long long)own * inner]);
    int rank = 0;
    for (int first = 0; first < size && rank < k; first += AT_ONCE) {
#pragma unroll
        for (int q = 0; q < AT_ONCE; ++q) {
            const int other = first + q;
            const A rival = A(line[(long long)min(other, size - 1) * inner]);
            rank += other < size && (is_before(rival, value) || (other < own && !is_before(value, rival)));
        }
    }
    if (rank >= k) return;
    const long long at = (outer * k + rank) * inner + i - row * inner;
    if (values) values[at] = line[(long long)own * inner];
    if (places) places[at] = origins ? origins[i] : own;
}

struct Add {
    __device__ __forceinline__ int operator()(int a, int b) const { return a + b; }
};

// ── the k-th element, digit by digit ───────────────────────────────────────────────────────────

constexpr int DIGIT = 8, BINS = 1 << DIGIT;
static_assert(THREADS >= BINS, "a thread a bin");

// Returns the key of the k-th element; k becomes the number of elements with that key among the k.
__device__ __forceinline__ Key find(const T* line, int size, int inner, int& k)
{
    __shared__ int bins[BINS];
    __shared__ int digit, left;
    Key chosen = 0;
    for (int shift = 8 * sizeof(Key) - DIGIT; shift >= 0; shift -= DIGIT) {
        if (threadIdx.x < BINS) bins[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < size; i += THREADS) {
            const Key key = key_of(A(line[(long long)i * inner]));
            if (((key ^ chosen) >> shift) < BINS) atomicAdd(bins + (key >> shift & (BINS - 1)), 1);
        }
        __syncthreads();
        const int bin = BINS - 1 - (int)threadIdx.x;  // greatest first
        const int own = bin >= 0 ? bins[bin] : 0;
        int total = 0;
        const int before = up_to(own, total, Add());
        if (before < k && k <= before + own) {
            digit = bin;
            left = k - before;
        }
        __syncthreads();
        chosen |= Key(digit) << shift;
        k = left;
    }
    return chosen;
}

// Keeps k elements of each chunk of lines [outer][size][inner], and their indices, in index order. Chunks differ by at
// most one in their sizes, which are at least k. Elements that have been thinned out before have their original indices
// in `sources`.
extern "C" __global__ void __launch_bounds__(THREADS)
thin_out(const T* x, const int* sources, T* values, int* origins, int whole, int k, int inner, int chunks)
{
    const int row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
    const int outer = row / inner, column = row - outer * inner;
    const int begin = (long long)whole * chunk / chunks, size = (long long)whole * (chunk + 1) / chunks - begin;
    const long long from = ((long long)outer * whole + begin) * inner + column;
    const T* line = x + from;
    int equal = k;  // how many of the elements that are equal to the k-th one are kept
    const Key last = find(line, size, inner, equal);
    const long long to = ((long long)outer * chunks + chunk) * k * inner + column;
    int above = 0, same = 0;  // counts of the preceding tiles
    for (int tile = 0; tile < size; tile += THREADS) {
        const int i = tile + threadIdx.x;
        const T value = line[(long long)min(i, size - 1) * inner];
        const Key key = key_of(A(value));
        const bool is_above = i < size && key > last, is_same = i < size && key == last;
        const int rank = up_to((int)is_above, above, Add());
        const int twin = up_to((int)is_same, same, Add());
        if (!is_above && !(is_same && twin < equal)) continue;
        const long long at = to + (long long)(rank + min(twin, equal)) * inner;
        values[at] = value;
        origins[at] = sources ? sources[from + (long long)i * inner] : begin + i;
    }
}
