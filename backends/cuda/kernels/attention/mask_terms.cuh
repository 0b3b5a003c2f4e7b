// The two terms of a mask in shared memory, for 64 rows of queries: a number for each row of keys, and one for each column.
//
// Compile-time, besides the constants of heads.cuh: OUTER_KEYS, rows of keys, or 0 if threads read the mask from memory.

constexpr bool STAGED = OUTER_KEYS > 0;
constexpr int AT_SECOND = (OUTER_KEYS + 1) / 2 * 2;  // pairs of the second term stay pairs
// Rows of a thread's column lie in different banks.
constexpr int PITCH_TERMS = (AT_SECOND + INNER_KEYS + 7) / 16 * 16 + 8;

// Copies the terms of the rows from `m0` on. 128 threads call it, and wait for one another afterwards.
__device__ __forceinline__ void stage_terms(M* to, const M* mask, int n, int head, int m0, const Sizes& s,
                                            const MaskSteps& by)
{
    constexpr int LENGTH = OUTER_KEYS + INNER_KEYS > 0 ? OUTER_KEYS + INNER_KEYS : 1;
    for (int i = threadIdx.x % 128; i < 64 * LENGTH; i += 128) {
        const int row = i / LENGTH, t = i % LENGTH, inner = t - OUTER_KEYS;
        const MaskRow from = row_of_mask(mask, n, head, min(m0 + row, s.rows - 1), by);
        to[row * PITCH_TERMS + (inner < 0 ? t : AT_SECOND + inner)] =
            inner < 0 ? from.first[t * by.key] : from.second[inner * by.second.inner_key];
    }
}

__device__ __forceinline__ MaskRow staged_row(const M* terms, int row)
{
    return {terms + row * PITCH_TERMS, terms + row * PITCH_TERMS + AT_SECOND};
}

// The strides of rows of a mask, staged or not.
__device__ __forceinline__ MaskSteps steps_of_rows(const MaskSteps& by)
{
    MaskSteps found = by;
    if (STAGED) found.key = found.second.inner_key = 1, found.inner_key = found.second.key = 0;
    return found;
}
