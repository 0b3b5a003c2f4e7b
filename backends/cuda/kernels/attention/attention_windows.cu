// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on tensor cores, for many samples with few keys (windows):
// a block processes some rows of a head of one sample after another. The queries, keys and values of the next one come
// meanwhile, and a mask that samples share stays in registers; each warp has rows of its own and all keys. See
// mma_tiles.cuh, also for the compile-time constants; RESIDENT are the blocks of a multiprocessor.

#include "attention/mma_tiles.cuh"
#include "attention/store_transposed.cuh"

static_assert(STAGES == 2 && WARPS_N == 1 && TM == 1 && GROUP == 1 && !SPLIT, "a warp has whole rows of a head");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_windows(const T* q, const T* k, const T* v, const M* mask, const float* sink, T* y, Sizes s, Steps of_q,
                  Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles,
                  int samples)
{
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    const int head = blockIdx.x % s.heads, tile = blockIdx.x / s.heads % tiles, begin = blockIdx.x / s.heads / tiles;
    const int step = gridDim.x / s.heads / tiles, kv_head = head / (s.heads / s.kv_heads);
    const int m0 = tile * ROWS, own = m0 + threadIdx.x / 32 * 16;
    const Keys range = keys_of_block(m0, ROWS, 0, s.total, GRAIN, s);
    const auto load_keys = [&](int n, int stage) {
        T* const to = buffers + stage * STAGE;
        if (n < samples) {
            load<VECTOR_K, SIZE_K>(to, nullptr, k, range.begin, range.end, n, kv_head, s.size_k, s, of_k);
            load<VECTOR_V, SIZE_V>(to + TILE * PITCH_K, nullptr, v, range.begin, range.end, n, kv_head, s.size_v, s, of_v);
        }
        cp_async_commit();
    };
    grid_dependency_sync();

    Accumulators sums;
    u32 queries[TM][SIZE_K / 16][4];
    load_keys(begin, 0);
    load_queries(queries, sums.rows, q, begin, m0, head, s.rows, s, of_q);
    MaskTile ahead = load_mask(sums.rows, range.begin, begin, mask, of_mask, s);
    for (int n = begin, stage = 0; n < samples; n += step, stage ^= 1) {
        load_keys(n + step, stage ^ 1);
        clear(sums);
        begin_with_sinks(sums, sink, scale);
        cp_async_wait<1>();
        __syncthreads();
        if (range.begin < range.end)
            multiply_tile(sums, queries, buffers + stage * STAGE, ahead, range.end, own < s.rows, 0, s.total, n, mask,
                          of_mask, s, scale, softcap);
        if (n + step < samples) {
            load_queries(queries, sums.rows, q, n + step, m0, head, s.rows, s, of_q);
            if (of_mask.batch) ahead = load_mask(sums.rows, range.begin, n + step, mask, of_mask, s);
        }
        store_transposed(sums, y + n * of_y.batch, own, s.rows, s, of_y);
        __syncthreads();
    }
}
