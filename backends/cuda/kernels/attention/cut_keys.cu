// Keys and values in halves for attention_cut.cu, which many blocks read: tiles of KEYS keys as they lie in shared memory
// (eights.cuh), each followed by the inverses of the scales of its keys and of its values. A block has the keys or the
// values of one tile. Rows past the last key are zeros.
//
// Compile-time, besides the constants of heads.cuh: SIZE_K and SIZE_V, rounded up to a multiple of 64; KEYS; VECTOR,
// elements per copy (1, 2, 4).

#include "attention/heads.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "gemm/halves.cuh"
#include "attention/halves_of_rows.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;
constexpr int BYTES_K = KEYS * SIZE_K * 4, BYTES_V = KEYS * SIZE_V * 4, BYTES_TILE = BYTES_K + BYTES_V + 2 * KEYS * 4;

#include "attention/eights.cuh"

template <int SIZE>
__device__ __forceinline__ void cut_tile(unsigned char* shared, const Source& from, int begin, int end, Word* to,
                                         float* inverses)
{
    float* const found = (float*)(shared + KEYS * SIZE * 4);
    const Eights<SIZE> rows = {shared};
    rows.copy(KEYS, begin, end, from);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    rows.cut(KEYS, found);
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS * SIZE / 4; i += THREADS) to[i] = ((const Word*)shared)[i];
    for (int i = threadIdx.x; i < KEYS; i += THREADS) inverses[i] = found[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
cut_keys(const float* k, const float* v, const float* past_k, const float* past_v, const long long* lengths,
         unsigned char* cut, Sizes s, Steps of_k, Steps of_v)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const int head = blockIdx.y % s.kv_heads, n = blockIdx.y / s.kv_heads, begin = blockIdx.x * KEYS;
    unsigned char* const tile = cut + ((long long)blockIdx.y * gridDim.x + blockIdx.x) * BYTES_TILE;
    float* const inverses = (float*)(tile + BYTES_K + BYTES_V);
    grid_dependency_sync();
    const int end = LENGTHS ? min(int(lengths[n]), s.total) : s.total;
    const Sources sources = {nullptr, k, v, past_k, past_v, of_k, of_k, of_v};
    if (blockIdx.z == 0)
        cut_tile<SIZE_K>(shared, sources.of(KEYS_OF_STEP, n, 0, head, s), begin, end, (Word*)tile, inverses);
    else
        cut_tile<SIZE_V>(shared, sources.of(VALUES, n, 0, head, s), begin, end, (Word*)(tile + BYTES_K), inverses + KEYS);
}
