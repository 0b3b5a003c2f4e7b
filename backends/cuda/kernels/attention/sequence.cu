// The operators that surround attention in transformers. T is the type of the elements, A that of the arithmetic.

#include "attention/steps.cuh"

// The word that position `i` of the result of `append` is copied from; I is wide enough to count the words.
template <typename I>
__device__ __forceinline__ T appended(I i, const T* past, const T* now, int heads, int total,
                                      int length, int size, const Steps& by)
{
    const int d = i % size, t = i / size % total, head = i / size / total % heads;
    const long long n = i / size / total / heads;
    if (t < length) return past[((n * heads + head) * length + t) * size + d];
    return now[n * by.batch + head * by.head + (t - length) * by.row + d];
}

// The past [batch][head][past][size] followed by the new positions. Elements are moved in words of type T,
// of one element or several.
extern "C" __global__ void __launch_bounds__(256)
append(const T* past, const T* now, T* y, long long count, int heads, int total, int length,
       int size, Steps by)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    y[i] = count < 1LL << 31 ? appended((unsigned)i, past, now, heads, total, length, size, by)
                             : appended(i, past, now, heads, total, length, size, by);
}

struct Recurrence {
    int heads, query_heads, length, size_k, size_v;
};

// A state [size_k][size_v] per head that every position updates and reads. One thread has one column
// of it. DELTA: the update replaces what the state stores for the key. DECAYS: 0, 1 (one per head) or 2
// (one per key dimension); RATES: 0, or the number of beta values per position.
extern "C" __global__ void __launch_bounds__(256)
recur(const T* q, const T* k, const T* v, const S* past, const T* decay, const T* beta, T* y,
      S* state_out, A* state, long long count, Recurrence g, A scale)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int column = i % g.size_v;
    const long long line = i / g.size_v, n = line / g.heads;
    const int head = line - n * g.heads, group = g.query_heads / g.heads;
    A* own = state + line * g.size_k * g.size_v + column;
    const S* before = past + (past ? line * g.size_k * g.size_v + column : 0);
    for (int d = 0; d < g.size_k; ++d)
        own[d * g.size_v] = past ? A(before[d * g.size_v]) : A(0);
    for (int t = 0; t < g.length; ++t) {
        const long long place = n * g.length + t, own_head = place * g.heads + head;
        const T* key = k + own_head * g.size_k;
        A told = 0;
        for (int d = 0; d < g.size_k; ++d) {
            A value = own[d * g.size_v];
            if (DECAYS == 1) value *= exp(A(decay[own_head]));
            if (DECAYS == 2) value *= exp(A(decay[own_head * g.size_k + d]));
            own[d * g.size_v] = value;
            told += A(key[d]) * value;
        }
        A update = A(v[own_head * g.size_v + column]);
        if (DELTA) update = A(beta[RATES == 1 ? place : own_head]) * (update - told);
        for (int d = 0; d < g.size_k; ++d) own[d * g.size_v] += A(key[d]) * update;
        if (!y) continue;
        for (int h = head * group; h < (head + 1) * group; ++h) {
            const T* query = q + (place * g.query_heads + h) * g.size_k;
            A sum = 0;
            for (int d = 0; d < g.size_k; ++d) sum += A(query[d]) * own[d * g.size_v];
            y[(place * g.query_heads + h) * g.size_v + column] = T(sum * scale);
        }
    }
    if (state_out)
        for (int d = 0; d < g.size_k; ++d)
            state_out[(line * g.size_k + d) * g.size_v + column] = S(own[d * g.size_v]);
}
