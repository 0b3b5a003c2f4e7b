// softmax(softcap(scale * q @ k') + mask) @ v of 16-bit floats on tensor cores, for many samples with few keys (windows):
// a block processes some rows of a head of one sample after another. The queries, keys and values of the next one come
// meanwhile, and a mask that samples share stays in registers, for which samples with the same one come in turn; each warp
// has rows of its own and all keys. See mma_tiles.cuh, also for the compile-time constants; RESIDENT are the blocks of a
// multiprocessor.

#include "attention/mma_tiles.cuh"
#include "attention/store_transposed.cuh"

static_assert(STAGES == 2 && WARPS_N == 1 && TM == 1 && GROUP == 1 && !SPLIT, "a warp has whole rows of a head");

// The samples of a block: every so-many-th one; or, if masks repeat, adjacent ones in an order that has those with the
// same mask side by side.
struct Turns {
    static constexpr bool TOGETHER = MASK_SAMPLES > 0;
    static constexpr int PERIOD = TOGETHER ? MASK_SAMPLES : 1;
    int first, step, end, each;  // samples with the same mask

    __device__ __forceinline__ Turns(int block, int blocks, int samples)
        : first(block), step(blocks), end(samples), each(samples / PERIOD)
    {
        if (!TOGETHER) return;
        first = (int)((long long)samples * block / blocks), end = (int)((long long)samples * (block + 1) / blocks), step = 1;
    }
    __device__ __forceinline__ int sample(int i) const { return TOGETHER ? i % each * PERIOD + i / each : i; }
    __device__ __forceinline__ bool changes(int i) const { return !TOGETHER || i % each == 0; }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_windows(const T* q, const T* k, const T* v, const M* mask, const M* second_mask, const float* sink, T* y, Sizes s, Steps of_q,
                  Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles,
                  int samples)
{
    place_terms(of_mask, mask, second_mask);
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    const int head = blockIdx.x % s.heads, tile = blockIdx.x / s.heads % tiles, kv_head = head / (s.heads / s.kv_heads);
    const Turns turns(blockIdx.x / s.heads / tiles, gridDim.x / s.heads / tiles, samples);
    const int m0 = tile * ROWS, own = m0 + threadIdx.x / 32 * 16;
    const Keys range = keys_of_block(m0, ROWS, 0, s.total, GRAIN, s);
    const auto load_keys = [&](int i, int stage) {
        T* const to = buffers + stage * STAGE;
        if (i < turns.end) {
            const int n = turns.sample(i);
            load<VECTOR_K, SIZE_K>(to, nullptr, k, range.begin, range.end, n, kv_head, s.size_k, s, of_k);
            load<VECTOR_V, SIZE_V>(to + TILE * PITCH_K, nullptr, v, range.begin, range.end, n, kv_head, s.size_v, s, of_v);
        }
        cp_async_commit();
    };
    grid_dependency_sync();

    Accumulators sums;
    u32 queries[TM][SIZE_K / 16][4];
    load_keys(turns.first, 0);
    int n = turns.sample(turns.first);
    load_queries(queries, sums.rows, q, n, m0, head, s.rows, s, of_q);
    MaskTile ahead = load_mask(sums.rows, range.begin, n, mask, of_mask, s);
    for (int i = turns.first, stage = 0; i < turns.end; i += turns.step, stage ^= 1) {
        const int next = i + turns.step, behind = turns.sample(next);
        load_keys(next, stage ^ 1);
        clear(sums);
        begin_with_sinks(sums, sink, scale);
        cp_async_wait<1>();
        __syncthreads();
        if (range.begin < range.end)
            multiply_tile(sums, queries, buffers + stage * STAGE, ahead, range.end, own < s.rows, 0, s.total, n, mask,
                          of_mask, s, scale, softcap);
        if (next < turns.end) {
            load_queries(queries, sums.rows, q, behind, m0, head, s.rows, s, of_q);
            if (of_mask.batch && turns.changes(next)) ahead = load_mask(sums.rows, range.begin, behind, mask, of_mask, s);
        }
        store_transposed(sums, y + n * of_y.batch, own, s.rows, s, of_y);
        n = behind;
        __syncthreads();
    }
}
