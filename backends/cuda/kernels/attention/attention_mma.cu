// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on tensor cores, with accumulators and exponentials in
// float32; see mma_tiles.cuh, also for the compile-time constants.

#include "attention/mma_tiles.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
attention_mma(const T* q, const T* k, const T* v, const M* mask, const M* second_mask, const T* past_k, const T* past_v,
              const long long* lengths, const float* sink, T* y, float* left, float2* beside, Sizes s, Steps of_q,
              Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap,
              int tiles)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    float4* const inbox = (float4*)(shared + INBOX);
    const int warp_m = threadIdx.x / 32 / WARPS_N;
    const int pair = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles;
    const int groups = s.heads / GROUP, n = pair / groups, first = pair % groups * GROUP;
    const int kv_head = first / (s.heads / s.kv_heads), rows = GROUP * s.rows, m0 = tile * ROWS;
    open_inbox(inbox, min(ROWS, rows - m0));
    grid_dependency_sync();

    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = s.past + (LENGTHS ? valid - s.rows : 0);  // position of the first query
    const Keys range = keys_of_block(m0, ROWS, shift, valid, GRAIN, s);
    const int count = max(0, (range.end - range.begin + TILE - 1) / TILE);
    const auto load_tile = [&](int step) {
        T* const to = buffers + step % STAGES * STAGE;
        const int t0 = range.begin + step * TILE;
        load<VECTOR_K, SIZE_K>(to, past_k, k, t0, range.end, n, kv_head, s.size_k, s, of_k);
        load<VECTOR_V, SIZE_V>(to + TILE * PITCH_K, past_v, v, t0, range.end, n, kv_head, s.size_v, s, of_v);
    };
    for (int step = 0; step < STAGES; ++step) {
        if (step < count) load_tile(step);
        cp_async_commit();
    }

    Accumulators sums;
    clear(sums);
    u32 queries[TM][SIZE_K / 16][4];
    load_queries(queries, sums.rows, q, n, m0, first, rows, s, of_q);
    begin_with_sinks(sums, sink, scale);
    const bool has_rows = m0 + warp_m * TM * 16 < rows;
    for (int step = 0; step < count; ++step) {
        const MaskTile ahead = load_mask(sums.rows, range.begin + step * TILE, n, mask, of_mask, s);
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        multiply_tile(sums, queries, buffers + step % STAGES * STAGE, ahead, range.end, has_rows, shift, valid, n, mask,
                      of_mask, s, scale, softcap);
        __syncthreads();
        if (step + STAGES < count) load_tile(step + STAGES);
        cp_async_commit();
    }
    finish(sums, shared, inbox, n, m0, first, rows, {y, left, beside, of_y}, s, steepness(scale));
}
