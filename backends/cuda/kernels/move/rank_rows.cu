// As sort_rows.cu, for few indices: each is compared with all others. A block has 32 of them, and each of its warps a
// part of the others.
//
// Compile-time: WARPS of a block; ROOM, the maximum number of indices.

#include "move/sorted_pairs.cuh"
#include "ptx/pdl.cuh"

constexpr int THREADS = 32 * WARPS;

struct alignas(16) Keys {
    int at[4];
};

extern "C" __global__ void __launch_bounds__(THREADS)
rank_rows(const long long* x, long long* y, int count)
{
    __shared__ Keys fours[ROOM / 4];
    __shared__ int ranks[WARPS][32];
    int* keys = (int*)fours;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * 32, own = first + lane;
    const int room = (count + 31) / 32 * 32;
    grid_dependency_sync();
    for (int i = threadIdx.x; i < room; i += THREADS) keys[i] = i < count ? key_of(x[i]) : int(LIMIT);
    __syncthreads();
    const int key = keys[own];
    int rank = 0;
    for (int base = warp * 32; base < room; base += THREADS) {
        const int limit = base < first ? key : key - 1;  // of equal ones, those in front come first
#pragma unroll
        for (int j = 0; j < 32; j += 4) {
            const Keys others = fours[(base + j) / 4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                rank += others.at[k] <= limit || (base == first && j + k < lane && others.at[k] == key);
        }
    }
    ranks[warp][lane] = rank;
    __syncthreads();
    if (warp || own >= count) return;
    for (int other = 1; other < WARPS; ++other) rank += ranks[other][lane];
    ((Pair*)y)[rank] = Pair{key, own};
}
