// Rows of queries, keys and values in float32, which are cut into halves in shared memory (cut_rows.cuh).

#include "gemm/cut_rows.cuh"

// Elements from a row to the next: sixteen bytes of padding place rows in different banks, and hold the inverse scale.
__device__ constexpr int pitch_of(int size) { return size + 4; }

enum { QUERIES, KEYS_OF_STEP, VALUES };  // what is copied and cut, in this order

// Rows of a head: `count` past ones, then others.
struct Source {
    const float *past, *now;
    int count, size;
    long long of_row;  // distance of the others, in elements

    __device__ __forceinline__ const float* operator()(int row) const
    {
        return row < count ? past + row * size : now + (row - count) * of_row;
    }
};

// The operands of an attention.
struct Sources {
    const float *q, *k, *v, *past_k, *past_v;
    const Steps &of_q, &of_k, &of_v;

    __device__ __forceinline__ Source of(int part, int n, int head, int kv_head, const Sizes& s) const
    {
        if (part == QUERIES) return {q, q + n * of_q.batch + head * of_q.head, 0, s.size_k, of_q.row};
        const long long past = ((long long)n * s.kv_heads + kv_head) * s.past;
        if (part == VALUES)
            return {past_v + past * s.size_v, v + n * of_v.batch + kv_head * of_v.head, s.past, s.size_v, of_v.row};
        return {past_k + past * s.size_k, k + n * of_k.batch + kv_head * of_k.head, s.past, s.size_k, of_k.row};
    }
};
