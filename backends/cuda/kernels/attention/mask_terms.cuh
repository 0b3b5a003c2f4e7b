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

// What the mask adds to the scores of a thread's two rows, from key `first` on, a multiple of KEYS.
struct MaskOfTerms {
    const M* rows[2];
    int first;

    __device__ __forceinline__ MaskOfTerms(const M* terms, int row, int first)
        : rows{terms + row * PITCH_TERMS, terms + (row + 8) * PITCH_TERMS}, first(first)
    {
    }
};

// Keys behind the last one have any numbers: their scores are hidden.
__device__ __forceinline__ auto biases_at(const MaskOfTerms& mask, int eight)
{
    constexpr int INNER = INNER_KEYS ? INNER_KEYS : 1;
    constexpr bool WHOLE = KEYS % INNER == 0;  // steps begin with a row of keys
    const int own = eight * 8 + threadIdx.x % 4 * 2, t = WHOLE ? own : mask.first + own;
    const int outer = WHOLE ? mask.first / INNER + t / INNER : t / INNER, inner = t % INNER;
    SumPairs found = {{}, true};
    for (int half = 0; half < 2; ++half) {
        const M *const row = mask.rows[half], *const across = row + AT_SECOND + inner;
        if constexpr (INNER % 2 == 0) {
            const MaskPair each = *(const MaskPair*)across;
            const float both = row[outer];
            for (int side = 0; side < 2; ++side) found.of[half][side] = both + float(each.at[side]);
        } else {
            const bool last = inner == INNER - 1;  // the next key is in another row
            found.of[half][0] = float(row[outer]) + float(across[0]);
            found.of[half][1] = float(row[outer + last]) + float(last ? row[AT_SECOND] : across[1]);
        }
    }
    return found;
}
