// Where the heads of an attention lie, and which keys a query sees. For attention.cu and its kin.
//
// Compile-time: MASK, how a mask is there; CAUSAL; WINDOW, whether keys far away are hidden; LENGTHS,
// whether samples have lengths of their own. M is the type of the mask.

#include "attention/steps.cuh"

enum { NO_MASK, FLAGS, NUMBERS };

struct MaskSteps {
    long long batch, head, row, key;
};

struct Sizes {
    int heads, kv_heads, rows, total, past, size_k, size_v, mask_length, left, right;
};

// Position `t` of a head's keys or values: the past, then what is new.
template <typename E>
__device__ __forceinline__ const E* position(const E* past, const E* now, int t, int n, int head,
                                             int size, const Sizes& s, const Steps& by)
{
    if (t < s.past) return past + (((long long)n * s.kv_heads + head) * s.past + t) * size;
    return now + n * by.batch + head * by.head + (t - s.past) * by.row;
}

// Whether the query at position `place` does not see key `t` of `valid` ones, mask apart.
__device__ __forceinline__ bool is_hidden(int t, int place, int valid, const Sizes& s)
{
    return t >= valid || (CAUSAL && t > place)
           || (WINDOW && ((s.left >= 0 && place - t > s.left)
                          || (s.right >= 0 && t - place > s.right)));
}

// What a mask adds to the score of key `t`; `row` is what it has for a query.
template <typename V>
__device__ __forceinline__ V added(const M* row, int t, const Sizes& s, const MaskSteps& by)
{
    if (MASK == NO_MASK) return V(0);
    if (t >= s.mask_length) return -V(INFINITY);
    const M found = row[t * by.key];
    if (MASK == NUMBERS) return V(found);
    return bool(found) ? V(0) : -V(INFINITY);
}

// The keys that some of the queries from `first` to `last` see: from `begin` to `end`.
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
