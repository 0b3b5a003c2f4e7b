// The part of a decoder step between its first product and its attention: rotates the heads of queries and of new keys
// (rotate.cuh), and writes the keys, and the unchanged values, to caches [batch][kv_heads][room][size], starting at
// position first[batch] or 0. Positions past the end are not written or, if CIRCULAR, wrap around to the beginning.
// Negative positions count from the end.
//
// T is the type of the elements, A that of the arithmetic, I that of `first`, Index that of thread indices.

#include "attention/steps.cuh"
#include "attention/rotate.cuh"
#include "ptx/pdl.cuh"

struct Lines {
    int heads, kv_heads, rows, half, chunks, batches, places, room, size;
};

extern "C" __global__ void __launch_bounds__(256)
rotate_append(const T* q, const T* k, const T* v, const T* cosine, const T* sine, const long long* positions,
              const I* first, T* y, T* keys, T* values, Index count, Lines s, Steps of_q, Steps of_k, Steps of_v,
              Steps of_y)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    const int all = s.heads + 2 * s.kv_heads;
    const Index line = i / s.chunks, group = line / s.rows;
    const int pair = (i - line * s.chunks) * VECTOR, row = line - group * s.rows;
    const long long n = group / all;
    const int head = group - n * all;
    grid_dependency_sync();
    if (i >= count) return;
    const long long own = n % s.batches * s.rows + row, place = positions ? positions[own] : own;
    const Rotation by = rotation_at(cosine, sine, place, s.places, pair, s.half);
    if (head < s.heads) {
        rotate_pairs(pairs_at(q + n * of_q.batch + head * of_q.head + row * of_q.row, pair, s.half),
             y + n * of_y.batch + head * of_y.head + row * of_y.row, by, pair, s.half);
        return;
    }
    long long at = row + (first ? (long long)first[n] : 0);
    if (CIRCULAR) at = (at % s.room + s.room) % s.room;
    else if (at < 0) at += s.room;
    if (at < 0 || at >= s.room) return;
    const bool is_key = head < s.heads + s.kv_heads;
    const int kv_head = head - s.heads - (is_key ? 0 : s.kv_heads);
    const long long to = ((n * s.kv_heads + kv_head) * s.room + at) * s.size;
    if (is_key) {
        rotate_pairs(pairs_at(k + n * of_k.batch + kv_head * of_k.head + row * of_k.row, pair, s.half), keys + to, by, pair,
             s.half);
        return;
    }
    const T* const from = v + n * of_v.batch + kv_head * of_v.head + row * of_v.row;
    if (pair < s.half) *(Words*)(values + to + pair) = words(from + pair);
    *(Words*)(values + to + s.half + pair) = words(from + s.half + pair);
}
