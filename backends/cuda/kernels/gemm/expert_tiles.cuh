// The pairs of rows and experts that a block has.
//
// A *pair* is a row with one of its TOP experts: number row * TOP + slot. A block has up to M pairs of one expert, and
// rows of its weights. Pairs are sorted by expert in `order`, and those of expert e end before ends[e]. Without SORTED
// there is a single row, whose pairs are in their own order, and every warp chooses the experts for itself.
//
// Compile-time, besides the constants of route.cuh: M; SORTED.

#include "gemm/route.cuh"

// The pairs of a block: positions from `first` on of `order`.
struct Tile {
    int expert, first, count;
};

// The expert and the pairs of tile number `tile`; none past the last tile. All lanes of a warp return the same.
__device__ __forceinline__ Tile tile_of(const L* router, const G* given, const int* ends, int tile)
{
    if constexpr (!SORTED) {
        Tile found = {0, tile, 1};
        choose_experts(router, given, 0, [&](int slot, int expert, float) {
            if (slot == tile) found.expert = expert;
        });
        return found;
    }
    const int lane = threadIdx.x % 32;
    int tiles = 0;
    for (int base = 0; base < EXPERTS; base += 32) {
        const int e = base + lane, end = e < EXPERTS ? ends[e] : 0;
        const int begin = e < EXPERTS && e > 0 ? ends[e - 1] : 0, own = e < EXPERTS ? (end - begin + M - 1) / M : 0;
        int through = own;
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
            const int before = __shfl_up_sync(~0u, through, apart);
            if (lane >= apart) through += before;
        }
        through += tiles;
        const unsigned past = __ballot_sync(~0u, through > tile);
        tiles = __shfl_sync(~0u, through, 31);
        if (!past) continue;
        const int source = __ffs(past) - 1;
        const int first = __shfl_sync(~0u, begin + (tile - (through - own)) * M, source);
        const int last = __shfl_sync(~0u, end, source);
        return Tile{base + source, first, min(M, last - first)};
    }
    return Tile{0, 0, 0};
}
