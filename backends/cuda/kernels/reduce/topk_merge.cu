// The k greatest (or least) elements of a few long lines of [outer][size][inner], in order; ties go to the
// lower index; NaN is the greatest. T is the type of the elements, A that of comparisons.
//
// Tiles of a line are sorted, one per block, and pairs of sorted runs are merged until one is left. A run
// covers `span` elements of its line and keeps the first `width` of them, at most k.
//
// Compile-time: LARGEST, LAST (pass); WARPS of a block.

#include "reduce/block.cuh"
#include "reduce/sort_keys.cuh"

// Sorts tiles of THREADS elements; keeps the first `width` of each in [lines][tiles][width].
extern "C" __global__ void __launch_bounds__(THREADS)
sort_tiles(const T* x, Key* keys, int* places, int size, int inner, int tiles, int width)
{
    __shared__ Key tile[THREADS];
    const int row = blockIdx.x / tiles, first = (blockIdx.x - row * tiles) * THREADS;
    const int outer = row / inner, own = threadIdx.x, count = min(THREADS, size - first);
    const T* line = x + (long long)outer * size * inner + row - outer * inner;
    const Key key = own < count ? key_of(A(line[(long long)(first + own) * inner])) : Key(0);
    tile[own] = key;
    __syncthreads();
    if (own >= count) return;
    int rank = 0;
    for (int other = 0; other < count; ++other)
        rank += tile[other] > key || (tile[other] == key && other < own);
    if (rank >= width) return;
    const long long at = (long long)blockIdx.x * width + rank;
    keys[at] = key;
    places[at] = first + own;
}

struct Runs {
    int size, inner, runs, span, width, kept;  // `kept` of two runs are kept
};

// Merges pairs of runs [lines][runs][width]. The last pass stores the elements of x and their indices.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_runs(const T* x, const Key* keys, const int* places, Key* merged_keys, int* merged_places,
           T* values, long long* indices, long long count, Runs r)
{
    const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
    if (i >= count) return;
    const int at = i % r.width, run = i / r.width % r.runs, twin = run ^ 1;
    const int row = i / r.width / r.runs;
    if (at >= r.size - (long long)run * r.span) return;
    const Key key = keys[i];
    const Key* others = keys + i - at + (long long)(twin - run) * r.width;
    const long long left = twin < r.runs ? r.size - (long long)twin * r.span : 0;
    int low = 0, high = left < r.width ? (int)left : r.width;  // those of the twin that are before
    while (low < high) {
        const int middle = (low + high) / 2;
        const bool is_before = twin < run ? others[middle] >= key : others[middle] > key;
        if (is_before) low = middle + 1;
        else high = middle;
    }
    const int rank = at + low;
    if (rank >= r.kept) return;
    const int place = places[i];
    if (!LAST) {
        const long long to = ((long long)row * ((r.runs + 1) / 2) + run / 2) * r.kept + rank;
        merged_keys[to] = key;
        merged_places[to] = place;
        return;
    }
    const int outer = row / r.inner, column = row - outer * r.inner;
    const long long to = ((long long)outer * r.kept + rank) * r.inner + column;
    if (values) values[to] = x[((long long)outer * r.size + place) * r.inner + column];
    if (indices) indices[to] = place;
}
