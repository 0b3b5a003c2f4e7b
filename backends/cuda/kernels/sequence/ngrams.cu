// Counts the n-grams of a pool in rows of items. The pool is a tree of states: the key of a transition is the
// state times the number of codes plus the code of an item. X is the type of items.

#include "ptx/pdl.cuh"

struct Steps {
    int codes, steps, shortest, longest, distances;
};

// Returns the index of `own` in an ascending list, or -1.
template <typename K> __device__ __forceinline__ int place_of(const K* list, int size, K own)
{
    int first = 0, last = size;
    while (first < last) {
        const int middle = (first + last) / 2;
        if (list[middle] < own) first = middle + 1;
        else last = middle;
    }
    return first < size && list[first] == own ? first : -1;
}

extern "C" __global__ void __launch_bounds__(256)
clear(int* counts, long long size)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    grid_dependency_sync();
    if (i < size) counts[i] = 0;
}

// One thread per item: counts the n-grams that begin there, of items 1, 2, ... apart; unigrams only once.
// items are sorted, and codes[i] is the code of items[i]; counts: [rows, grams].
extern "C" __global__ void __launch_bounds__(256)
count_grams(const X* x, const long long* items, const long long* codes, const long long* keys,
            const long long* targets, const long long* ends, int* counts, long long size, int length, int grams, Steps s)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    grid_dependency_sync();
    if (i >= size) return;
    const long long row = i / length;
    const int first = int(i % length);
    for (int distance = 1; distance <= s.distances; ++distance) {
        long long state = 0;
        for (int n = 1; n <= s.longest && first + (n - 1) * (long long)distance < length; ++n) {
            const int item = place_of(items, s.codes, (long long)x[i + (n - 1) * (long long)distance]);
            const int step = item < 0 ? -1 : place_of(keys, s.steps, state * s.codes + codes[item]);
            if (step < 0) break;
            state = targets[step];
            if (n >= s.shortest && (n > 1 || distance == 1) && ends[state] >= 0)
                atomicAdd(&counts[row * grams + ends[state]], 1);
        }
    }
}

// y[row, place] = sum of the weighted counts of the n-grams of a column: those of `order` from begins[place] on.
// weights may be null; BINARY: whether counts are 0 or 1.
extern "C" __global__ void __launch_bounds__(256)
weigh(const int* counts, const float* weights, const int* order, const int* begins, float* y, long long size, int places,
      int grams)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    grid_dependency_sync();
    if (i >= size) return;
    const int place = int(i % places);
    float sum = 0;
    for (int at = begins[place]; at < begins[place + 1]; ++at) {
        const int gram = order[at], count = counts[i / places * grams + gram];
        sum += float(BINARY ? min(count, 1) : count) * (weights ? weights[gram] : 1.0f);
    }
    y[i] = sum;
}
