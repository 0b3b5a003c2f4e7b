// The memory layout of the heads of an attention, and which keys a query sees. For attention.cu and its variants.
//
// Compile-time: MASK, the kind of mask; MASK_SAMPLES, after how many samples it repeats, or 0 if it does not; MASK_TERMS,
// the tensors whose sum it is; INNER_ROWS and INNER_KEYS, the inner sizes where rows or keys of these are two axes, or 0;
// CAUSAL; WINDOW, whether distant keys are hidden; LENGTHS, whether samples have their own lengths. M is the type of the
// mask.

#include "attention/steps.cuh"

enum { NO_MASK, FLAGS, NUMBERS };

// Strides in a term of a mask; those of rows and keys are of the outer axis where these are two.
struct TermSteps {
    long long batch, head, row, key, inner_row, inner_key;
};
// The same of all terms; `apart` is where the second one begins, from the first one on.
struct MaskSteps {
    long long batch, head, row, key, inner_row, inner_key, apart;
    TermSteps second;
};

__device__ __forceinline__ void place_terms(MaskSteps& by, const M* mask, const M* second)
{
    if (MASK_TERMS > 1) by.apart = second - mask;
}

// Which sample of the mask a sample has, and where that begins.
__device__ __forceinline__ int sample_of_mask(int n)
{
    constexpr int PERIOD = MASK_SAMPLES ? MASK_SAMPLES : 1;
    return MASK_SAMPLES ? n % PERIOD : n;
}

// The place of number i of rows or keys.
template <int INNER, typename Index> __device__ __forceinline__ Index along(int i, Index step, Index inner_step)
{
    constexpr int SIZE = INNER ? INNER : 1;
    return INNER ? i / SIZE * step + i % SIZE * inner_step : i * step;
}

// What a mask has for a row of queries.
struct MaskRow {
    const M* first;
    const M* second;
};

template <typename By>
__device__ __forceinline__ long long place_in_mask(int n, int head, int row, const By& by)
{
    return sample_of_mask(n) * by.batch + head * by.head + along<INNER_ROWS>(row, by.row, by.inner_row);
}

__device__ __forceinline__ MaskRow row_of_mask(const M* mask, int n, int head, int row, const MaskSteps& by)
{
    if (MASK == NO_MASK) return {mask, mask};
    return {mask + place_in_mask(n, head, row, by),
            MASK_TERMS > 1 ? mask + by.apart + place_in_mask(n, head, row, by.second) : nullptr};
}

struct Sizes {
    int heads, kv_heads, rows, total, past, size_k, size_v, mask_length, left, right;
};

// Position `t` of a head's keys or values: the past, then the new ones.
template <typename E>
__device__ __forceinline__ const E* position(const E* past, const E* now, int t, int n, int head,
                                             int size, const Sizes& s, const Steps& by)
{
    if (t < s.past) return past + (((long long)n * s.kv_heads + head) * s.past + t) * size;
    return now + n * by.batch + head * by.head + (t - s.past) * by.row;
}

// Whether key `t` of `valid` ones is hidden from the query at position `place`, regardless of the mask.
__device__ __forceinline__ bool is_hidden(int t, int place, int valid, const Sizes& s)
{
    return t >= valid || (CAUSAL && t > place)
           || (WINDOW && ((s.left >= 0 && place - t > s.left)
                          || (s.right >= 0 && t - place > s.right)));
}

// The value that a mask adds to the score of key `t`; `row` is the mask's row of the query.
template <typename V>
__device__ __forceinline__ V added(const MaskRow& row, int t, const Sizes& s, const MaskSteps& by)
{
    if (MASK == NO_MASK) return V(0);
    if (t >= s.mask_length) return -V(INFINITY);
    const M found = row.first[along<INNER_KEYS>(t, by.key, by.inner_key)];
    if (MASK == FLAGS) return bool(found) ? V(0) : -V(INFINITY);
    if (MASK_TERMS == 1) return V(found);
    return V(found) + V(row.second[along<INNER_KEYS>(t, by.second.key, by.second.inner_key)]);
}

// The range of keys, `begin` to `end`, that any of the queries from `first` to `last` sees.
struct Keys {
    int begin, end;
};
__device__ __forceinline__ Keys keys_of(int first, int last, int valid, const Sizes& s)
{
    Keys found = {0, min(valid, s.total)};
    if (MASK != NO_MASK) found.end = min(found.end, s.mask_length);
    if (CAUSAL) found.end = min(found.end, last + 1);
    if (WINDOW && s.right >= 0) found.end = min(found.end, last + s.right + 1);
    if (WINDOW && s.left >= 0) found.begin = max(0, first - s.left);
    return found;
}
