// Positions of pairs sorted by expert, those of an expert in their own order; see expert_tiles.cuh.
//
// Compile-time: EXPERTS.

// Sorts the pairs of one expert with a warp. `chosen(pair)` is the expert of a pair.
template <typename Chosen>
__device__ __forceinline__ void sort_pairs(const Chosen& chosen, int* order, int* ends, int pairs, int expert)
{
    const int lane = threadIdx.x % 32;
    int before = 0, own = 0;
    for (int base = 0; base < pairs; base += 32) {
        const int found = base + lane < pairs ? chosen(base + lane) : EXPERTS;
        before += __popc(__ballot_sync(~0u, found < expert));
        own += __popc(__ballot_sync(~0u, found == expert));
    }
    if (lane == 0) ends[expert] = before + own;
    if (own == 0) return;
    for (int base = 0; base < pairs; base += 32) {
        const bool is_own = base + lane < pairs && chosen(base + lane) == expert;
        const unsigned mask = __ballot_sync(~0u, is_own);
        if (is_own) order[before + __popc(mask & ((1u << lane) - 1))] = base + lane;
        before += __popc(mask);
    }
}
