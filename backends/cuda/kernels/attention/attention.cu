// softmax(softcap(scale * q @ k') + mask) @ v, one block per row of queries. The scores of the row are
// kept in the workspace. T is the type of queries, keys and results, V that of values, M that of the
// mask, A the type of the arithmetic.
//
// Compile-time, besides the constants of heads.cuh: STAGE, which scores are returned; WARPS of a block; LANES, the
// threads that share a score: 1, or 32 where heads are long and keys are few.

#include "reduce/block.cuh"
#include "attention/heads.cuh"

enum { PRODUCTS, CAPPED, MASKED, WEIGHTS, NO_SCORES };

extern "C" __global__ void __launch_bounds__(THREADS)
attention(const T* q, const T* k, const V* v, const M* mask, const M* second_mask, const T* past_k, const V* past_v,
          const long long* lengths, T* y, T* scores, A* work, Sizes s, Steps of_q, Steps of_k,
          Steps of_v, Steps of_y, MaskSteps of_mask, A scale, A softcap)
{
    place_terms(of_mask, mask, second_mask);
    const int row = blockIdx.x % s.rows, head = blockIdx.x / s.rows % s.heads;
    const int n = blockIdx.x / s.rows / s.heads, kv_head = head / (s.heads / s.kv_heads);
    const T* query = q + n * of_q.batch + head * of_q.head + row * of_q.row;
    A* own = work + (long long)blockIdx.x * s.total;
    T* out = STAGE == NO_SCORES ? nullptr : scores + (long long)blockIdx.x * s.total;
    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int place = row + s.past + (LENGTHS ? valid - s.rows : 0);
    const MaskRow shown = row_of_mask(mask, n, head, row, of_mask);
    A peak = -A(INFINITY), seen = -A(INFINITY);
    const int lane = threadIdx.x % LANES;
    for (int t = threadIdx.x / LANES; t < s.total; t += THREADS / LANES) {
        const T* key = position(past_k, k, t, n, kv_head, s.size_k, s, of_k);
        A score = 0;
#pragma unroll 8
        for (int d = lane; d < s.size_k; d += LANES) score += A(query[d]) * scale * A(key[d]);
        if (LANES > 1) score = over_warp(score, Plus());
        if (STAGE == PRODUCTS && lane == 0) out[t] = T(score);
        if (softcap > A(0)) score = softcap * tanh(score / softcap);
        if (STAGE == CAPPED && lane == 0) out[t] = T(score);
        A bias = is_hidden(t, place, valid, s) ? -A(INFINITY) : A(0);
        if (MASK != NO_MASK) bias += added<A>(shown, t, s, of_mask);
        score += bias;
        if (STAGE == MASKED && lane == 0) out[t] = T(score);
        if (lane == 0) own[t] = score;
        peak = Larger()(peak, score);
        seen = Larger()(seen, bias);
    }
    peak = over_block(peak, Larger());
    seen = over_block(seen, Larger());
    if (peak == -A(INFINITY)) peak = 0;
    A sum = 0;
    for (int t = threadIdx.x; t < s.total; t += THREADS) sum += own[t] = exp(own[t] - peak);
    sum = over_block(sum, Plus());
    const A by = seen == -A(INFINITY) ? A(0) : A(1) / sum;
    if (STAGE == WEIGHTS)
        for (int t = threadIdx.x; t < s.total; t += THREADS)
            out[t] = T(by == A(0) ? A(0) : own[t] * by);
    __syncthreads();
    if (!y) return;
    T* place_y = y + n * of_y.batch + head * of_y.head + row * of_y.row;
    for (int d = threadIdx.x; d < s.size_v; d += THREADS) {
        A result = 0;
        for (int t = 0; t < s.total; ++t)
            result += own[t] * A(position(past_v, v, t, n, kv_head, s.size_v, s, of_v)[d]);
        place_y[d] = T(by == A(0) ? A(0) : result * by);
    }
}
