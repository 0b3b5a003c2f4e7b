// How blocks share heads and keys. Heads of queries that have their keys in common can have a block in
// common, which then reads these once: its rows are those of GROUP heads, one head after the other. And
// keys can be cut into parts, one for every block of gridDim.y: for each of its rows a block then leaves
// the sums of values, and beside them the greatest score and the sum of weights, for attention_merge.cu.
//
// Compile-time: GROUP; SPLIT, whether keys are cut. heads.cuh comes before it.

struct Row {
    int head, query;
};

// Row `row` of a block whose first head is `first`.
__device__ __forceinline__ Row row_of(int row, int first, const Sizes& s)
{
    if (GROUP == 1) return {first, row};
    return {first + row / s.rows, row % s.rows};
}

// The keys that a block with the rows from `m0` on, `count` at most, goes over; they begin at a multiple of
// `grain`. `shift` is the position of the first query.
__device__ __forceinline__ Keys keys_of_block(int m0, int count, int shift, int valid, int grain,
                                              const Sizes& s)
{
    const int first = GROUP == 1 ? m0 : 0;
    const int last = GROUP == 1 ? min(m0 + count, s.rows) - 1 : s.rows - 1;
    const Keys all = keys_of(first + shift, last + shift, valid, s);
    const int begin = all.begin / grain * grain;
    if (!SPLIT) return {begin, all.end};
    const int parts = gridDim.y, grains = max(0, (all.end - begin + grain - 1) / grain);
    const int each = (grains + parts - 1) / parts * grain, own = begin + int(blockIdx.y) * each;
    return {own, min(all.end, own + each)};
}

// Where a block leaves what it has for a row: the parts of a row lie one after the other.
__device__ __forceinline__ long long place_of(int n, const Row& row, const Sizes& s)
{
    return (((long long)n * s.heads + row.head) * s.rows + row.query) * gridDim.y + blockIdx.y;
}
