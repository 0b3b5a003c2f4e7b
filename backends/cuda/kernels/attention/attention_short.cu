// softmax(softcap(scale * q @ k') + mask) @ v with few keys, such as those of some frames or of a small window: LANES
// threads of a warp have a row of queries, and a warp has several. Scores stay in registers, in all of these threads.
// T is the type of queries, keys, values and results, M that of the mask; the arithmetic is float32.
//
// Compile-time, besides the constants of heads.cuh: KEYS, all there are; LANES; ROWS of a block; VECTOR, elements read
// at once; PER_K and PER_V, such words of a thread.

#include "ptx/pdl.cuh"
#include "attention/heads.cuh"
#include "elementwise/functions.cuh"
#include "elementwise/words.cuh"

// The words of a thread in `size` elements; zeros behind these.
template <int PER> __device__ __forceinline__ void read(float (&to)[PER][VECTOR], const T* from, int size)
{
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (threadIdx.x % LANES + i * LANES) * VECTOR;
        Words<T> found = {};
        if (at < size) found = *(const Words<T>*)(from + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) to[i][e] = float(found.at[e]);
    }
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
attention_short(const T* q, const T* k, const T* v, const M* mask, const M* second_mask, const T* past_k, const T* past_v,
                const long long* lengths, T* y, Sizes s, Steps of_q, Steps of_k, Steps of_v, Steps of_y,
                MaskSteps of_mask, float scale, float softcap, int count)
{
    place_terms(of_mask, mask, second_mask);
    const int number = blockIdx.x * ROWS + threadIdx.x / LANES;
    const int own = number < count ? number : 0;  // without a row, a thread takes part in the sums of others
    const int row = own % s.rows, head = own / s.rows % s.heads, n = own / s.rows / s.heads;
    const int kv_head = head / (s.heads / s.kv_heads);
    grid_dependency_sync();
    float query[PER_K][VECTOR], key[PER_K][VECTOR], scores[KEYS];
    read(query, q + n * of_q.batch + head * of_q.head + row * of_q.row, s.size_k);
#pragma unroll
    for (int t = 0; t < KEYS; ++t) {
        read(key, position(past_k, k, t, n, kv_head, s.size_k, s, of_k), s.size_k);
        scores[t] = 0;
#pragma unroll
        for (int i = 0; i < PER_K; ++i)
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) scores[t] += query[i][e] * scale * key[i][e];
    }
    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int place = row + s.past + (LENGTHS ? valid - s.rows : 0);
    const MaskRow shown = row_of_mask(mask, n, head, row, of_mask);
    const auto larger = [](float a, float b) { return a > b || a != a ? a : b; };  // NaN stays
    float peak = -INFINITY, seen = -INFINITY, sum = 0;
#pragma unroll
    for (int t = 0; t < KEYS; ++t) {
#pragma unroll
        for (int other = LANES / 2; other; other /= 2) scores[t] += __shfl_xor_sync(~0u, scores[t], other);
        if (SOFTCAP) scores[t] = softcap * tanhf(scores[t] / softcap);
        float bias = is_hidden(t, place, valid, s) ? -INFINITY : 0.0f;
        if (MASK != NO_MASK) bias += added<float>(shown, t, s, of_mask);
        scores[t] += bias;
        peak = larger(peak, scores[t]);
        seen = larger(seen, bias);
    }
    if (peak == -INFINITY) peak = 0;
#pragma unroll
    for (int t = 0; t < KEYS; ++t) sum += scores[t] = quick_exp2(1.4426950409f * (scores[t] - peak));
    const float by = seen == -INFINITY ? 0.0f : 1.0f / sum;
    float value[PER_V][VECTOR], result[PER_V][VECTOR] = {};
#pragma unroll
    for (int t = 0; t < KEYS; ++t) {
        read(value, position(past_v, v, t, n, kv_head, s.size_v, s, of_v), s.size_v);
#pragma unroll
        for (int i = 0; i < PER_V; ++i)
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) result[i][e] += scores[t] * value[i][e];
    }
    T* const to = y + n * of_y.batch + head * of_y.head + row * of_y.row;
#pragma unroll
    for (int i = 0; i < PER_V; ++i) {
        const int at = (threadIdx.x % LANES + i * LANES) * VECTOR;
        if (number >= count || at >= s.size_v) return;
        Words<T> found;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) found.at[e] = T(by == 0.0f ? 0.0f : result[i][e] * by);
        *(Words<T>*)(to + at) = found;
    }
}
