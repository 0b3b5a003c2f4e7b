// How blocks share heads and keys. Query heads with the same keys (grouped-query attention) can share a block, which
// then reads the keys once: its rows are those of GROUP heads, head after head. The keys can be split into parts, one
// for each block along gridDim.y: for each of its rows a block then stores the sums of values, the maximum score and
// the sum of weights, which attention_merge.cu combines.
//
// Compile-time: GROUP; SPLIT, whether the keys are split. Include heads.cuh first.

struct Row {
    int head, query;
};

// Row `row` of a block whose first head is `first`.
__device__ __forceinline__ Row row_of(int row, int first, const Sizes& s)
{
    if (GROUP == 1) return {first, row};
    return {first + row / s.rows, row % s.rows};
}

// The range of keys that a block with at most `count` rows from `m0` on processes; it begins at a multiple of
// `grain`. `shift` is the position of the first query, and `parts` the number of parts of the keys.
__device__ __forceinline__ Keys keys_of_block(int m0, int count, int shift, int valid, int grain,
                                              const Sizes& s, int parts)
{
    const int first = GROUP == 1 ? m0 : 0;
    const int last = GROUP == 1 ? min(m0 + count, s.rows) - 1 : s.rows - 1;
    const Keys all = keys_of(first + shift, last + shift, valid, s);
    const int begin = all.begin / grain * grain;
    if (!SPLIT) return {begin, all.end};
    const int grains = max(0, (all.end - begin + grain - 1) / grain);
    const int each = (grains + parts - 1) / parts * grain, own = begin + int(blockIdx.y) * each;
    return {own, min(all.end, own + each)};
}

__device__ __forceinline__ Keys keys_of_block(int m0, int count, int shift, int valid, int grain, const Sizes& s)
{
    return keys_of_block(m0, count, shift, valid, grain, s, gridDim.y);
}

// Where a block stores its partial result of a row: the parts of a row are contiguous.
__device__ __forceinline__ long long place_of(int n, const Row& row, const Sizes& s)
{
    return (((long long)n * s.heads + row.head) * s.rows + row.query) * gridDim.y + blockIdx.y;
}
