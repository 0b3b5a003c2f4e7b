// Online softmax: turns scores into weights one step of keys at a time. Each row of scores becomes the exponentials of
// the scores minus the maximum so far, and the sums accumulated under a smaller maximum are rescaled.
//
// Compile-time, besides the constants of heads.cuh: SOFTCAP; MASK_ROWS, whether rows of the mask differ; MASK_PAIRS,
// whether what it adds to a key and to the next one can be read at once; RAW, whether scores need only their positive
// scale, which is then applied within the exponential.

constexpr float LOG2E = 1.4426950408889634f;
// Whether differences of scores are taken before they are scaled: next to the large numbers that masks add, scores would
// be rounded away; and float32 has no bits to spare.
constexpr bool DIFFERENCES = MASK == NUMBERS || sizeof(T) == 4;

__device__ __forceinline__ float over_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float over_quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// The weights of sixteen keys, of which a thread has those of two groups of eight, in the order that a product reads
// them.
__device__ __forceinline__ void as_operand(u32 (&found)[4], const float (&first)[4],
                                           const float (&second)[4])
{
    found[0] = pair_of(first[0], first[1]);
    found[1] = pair_of(first[2], first[3]);
    found[2] = pair_of(second[0], second[1]);
    found[3] = pair_of(second[2], second[3]);
}

// The factor that turns differences of scores into exponents of 2.
__device__ __forceinline__ float steepness(float scale) { return RAW ? scale * LOG2E : LOG2E; }

// The keys that the scores of a thread belong to, and which of them its two rows see.
struct Seen {
    int places[2];        // positions of the queries
    int first;            // the first key
    int valid;            // keys that are there
    int count;            // eights of keys that have scores
};

// Reads what the mask adds to the score of a key when it is needed; `first` is the first key of the step.
struct MaskInPlace {
    const M* rows[2];
    int first;
    const Sizes& s;
    const MaskSteps& by;

    __device__ __forceinline__ float operator()(int eight, int side, int half) const
    {
        return added<float>(rows[half], first + eight * 8 + threadIdx.x % 4 * 2 + side, s, by);
    }
};

// What a mask adds to the scores of a thread's two keys of an eight.
struct Biases {
    float at[2];
};
template <typename Bias>
__device__ __forceinline__ Biases biases_of(const Bias& bias_of, int eight, int half)
{
    return {bias_of(eight, 0, half), bias_of(eight, 1, half)};
}
struct alignas(2 * sizeof(M)) MaskPair {
    M at[2];
};
__device__ __forceinline__ Biases biases_of(const MaskInPlace& mask, int eight, int half)
{
    if constexpr (!MASK_PAIRS) {
        return {mask(eight, 0, half), mask(eight, 1, half)};
    } else {
        const int t = mask.first + eight * 8 + threadIdx.x % 4 * 2;
        if (t >= mask.s.mask_length) return {-INFINITY, -INFINITY};
        const MaskPair found = *(const MaskPair*)(mask.rows[half] + t);
        if (MASK == NUMBERS) return {float(found.at[0]), float(found.at[1])};
        return {bool(found.at[0]) ? 0.0f : -INFINITY, bool(found.at[1]) ? 0.0f : -INFINITY};
    }
}

// Turns a thread's scores into what exponentials are taken of, and returns the greatest of each of its two rows. SOME:
// whether a row may not see a key.
template <bool SOME, int EIGHTS, typename Bias>
__device__ __forceinline__ void prepare(float (&scores)[EIGHTS][4], float (&top)[2], const Bias& bias_of,
                                        const Seen& seen, const Sizes& s, float scale, float softcap)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < EIGHTS; ++j) {
        if (j >= seen.count) break;
        Biases biases[2];
        if (MASK != NO_MASK) biases[0] = biases_of(bias_of, j, 0);
        if (MASK != NO_MASK && MASK_ROWS) biases[1] = biases_of(bias_of, j, 1);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int t = seen.first + j * 8 + lane % 4 * 2 + side;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float& score = scores[j][half * 2 + side];
                if (!RAW) score *= scale;
                if (SOFTCAP) score = softcap * tanhf(score / softcap);
                if (MASK != NO_MASK) score += biases[MASK_ROWS ? half : 0].at[side];
                if (SOME && is_hidden(t, seen.places[half], seen.valid, s)) score = -INFINITY;
                top[half] = fmaxf(top[half], score);
            }
        }
    }
}

// A thread has two adjacent keys of every eight, of two rows: the fragment layout of a product's sums. `sum`
// covers the thread's own keys. `bias_of(eight, side, row)` is what the mask adds to a score. `by` are the factors of
// results so far.
template <int EIGHTS, typename Bias>
__device__ __forceinline__ void weigh(float (&scores)[EIGHTS][4], float (&by)[2], float (&peak)[2],
                                      float (&sum)[2], const Bias& bias_of, const Seen& seen, const Sizes& s,
                                      float scale, float softcap)
{
    const int last = seen.first + EIGHTS * 8 - 1;
    bool all = true;  // keys that a row sees are neighbours
#pragma unroll
    for (int half = 0; half < 2; ++half)
        all &= !is_hidden(seen.first, seen.places[half], seen.valid, s)
               && !is_hidden(last, seen.places[half], seen.valid, s);
    float top[2] = {-INFINITY, -INFINITY};
    if (__all_sync(~0u, all)) prepare<false>(scores, top, bias_of, seen, s, scale, softcap);
    else prepare<true>(scores, top, bias_of, seen, s, scale, softcap);
    const float steep = steepness(scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float most = fmaxf(peak[half], over_quad_max(top[half]));
        const float base = most == -INFINITY ? 0.0f : most;
        by[half] = exp2_of((peak[half] - base) * steep);
        peak[half] = most;
        float total = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            if (j >= seen.count) break;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float& score = scores[j][half * 2 + side];
                score = exp2_of(DIFFERENCES ? (score - base) * steep : fmaf(score, steep, -base * steep));
                total += score;
            }
        }
        sum[half] = sum[half] * by[half] + total;
    }
}

// Multiplies the results of a thread's two rows by their factors.
template <int WIDE>
__device__ __forceinline__ void rescale(float (&results)[WIDE][4], const float (&by)[2])
{
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            results[j][half * 2] *= by[half];
            results[j][half * 2 + 1] *= by[half];
        }
}

// Both, where results are at rest.
template <int EIGHTS, int WIDE, typename Bias>
__device__ __forceinline__ void weigh(float (&scores)[EIGHTS][4], float (&results)[WIDE][4],
                                      float (&peak)[2], float (&sum)[2], const Bias& bias_of,
                                      const Seen& seen, const Sizes& s, float scale, float softcap)
{
    float by[2];
    weigh(scores, by, peak, sum, bias_of, seen, s, scale, softcap);
    rescale(results, by);
}
