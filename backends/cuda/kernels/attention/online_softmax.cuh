// Online softmax: turns scores into weights one step of keys at a time. Each row of scores becomes the exponentials of
// the scores minus the maximum so far, and the sums accumulated under a smaller maximum are rescaled.
//
// Compile-time, besides the constants of heads.cuh: SOFTCAP; MASK_ROWS, whether rows of the mask differ; MASK_PAIRS,
// whether what it adds to a key and to the next one can be read at once; MASK_FAR, whether it may add numbers beyond
// those of float16; RAW, whether scores need only their positive scale, which is then applied within the exponential.

constexpr float LOG2E = 1.4426950408889634f;
// Whether differences of scores are taken before they are scaled: float32 has no bits to spare, and a mask may add
// numbers, such as -1e9, whose product with LOG2E is rounded by more than exponents can bear.
constexpr bool DIFFERENCES = sizeof(T) == 4 || MASK_FAR;

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

// The same for scores up to `peak`. Masks may add numbers whose product with LOG2E is infinite; as differences of scores
// that large are zero or huge, any factor will do.
__device__ __forceinline__ float steepness_at(float peak, float scale)
{
    return MASK == NUMBERS && fabsf(peak) > 1e37f ? 0.25f : steepness(scale);
}

// The keys that the scores of a thread belong to, and which of them its two rows see.
struct Seen {
    int places[2];        // positions of the queries
    int first;            // the first key
    int valid;            // keys that are there
    int count;            // eights of keys that have scores
};

// Reads what the mask adds to the score of a key when it is needed; `first` is the first key of the step.
struct MaskInPlace {
    MaskRow rows[2];
    int first;
    const Sizes& s;
    const MaskSteps& by;

    __device__ __forceinline__ float operator()(int eight, int side, int half) const
    {
        return added<float>(rows[half], first + eight * 8 + threadIdx.x % 4 * 2 + side, s, by);
    }
};

// Masks the scores of a thread's two keys of an eight.
template <typename Bias> struct EachBias {
    const Bias& of;
    int eight;

    __device__ __forceinline__ float operator()(float score, int side, int half) const
    {
        return score + of(eight, side, half);
    }
};
// The same, of masks whose neighbours are read at once.
struct alignas(2 * sizeof(M)) MaskPair {
    M at[2];
};
// Its bits, which stay together until they are needed; of flags, and of masks of 16 bits.
template <int SIZE> struct PairOf {
    using Word = unsigned;
};
template <> struct PairOf<1> {
    using Word = unsigned short;
};
using PairWord = PairOf<sizeof(M)>::Word;
struct BiasPairs {
    MaskPair of[2];  // of the two rows
    bool inside;

    __device__ __forceinline__ float operator()(float score, int side, int half) const
    {
        const MaskPair& pair = of[MASK_ROWS ? half : 0];
        if (!inside) return -INFINITY;
        if (MASK == NUMBERS) return score + float(pair.at[side]);
        return *(const PairWord*)&pair & 0xff << side * 8 ? score : -INFINITY;  // one test per flag
    }
};

// The sums of two terms, the first of which is the same for neighbours.
struct SumPairs {
    float of[2][2];
    bool inside;

    __device__ __forceinline__ float operator()(float score, int side, int half) const
    {
        return inside ? score + of[half][side] : -INFINITY;
    }
};

template <typename Bias> __device__ __forceinline__ auto biases_at(const Bias& bias_of, int eight)
{
    return EachBias<Bias>{bias_of, eight};
}
__device__ __forceinline__ auto biases_at(const MaskInPlace& mask, int eight)
{
    const int t = mask.first + eight * 8 + threadIdx.x % 4 * 2;
    if constexpr (!MASK_PAIRS) {
        return EachBias<MaskInPlace>{mask, eight};
    } else if constexpr (MASK_TERMS > 1) {
        SumPairs found = {{}, t < mask.s.mask_length};
        if (found.inside)
            for (int half = 0; half < 2; ++half) {
                const float both = mask.rows[half].first[t / INNER_KEYS * int(mask.by.key)];
                const M* const from = mask.rows[half].second + along<INNER_KEYS>(t, int(mask.by.second.key), 1);
                const MaskPair each = *(const MaskPair*)from;
                for (int side = 0; side < 2; ++side) found.of[half][side] = both + float(each.at[side]);
            }
        return found;
    } else {
        BiasPairs found = {{}, t < mask.s.mask_length};
        if (found.inside)
            for (int half = 0; half < (MASK_ROWS ? 2 : 1); ++half)
                found.of[half] = *(const MaskPair*)(mask.rows[half].first + t);
        return found;
    }
}

// Whether only keys behind the last one that is there are hidden, and scores of minus infinity stay what they are. Then
// these are set before scores are prepared, in one form for all steps.
constexpr bool LAST = !CAUSAL && !WINDOW && RAW && !SOFTCAP && MASK != NUMBERS;

// Hides these keys, few of a step.
template <int EIGHTS> __device__ __forceinline__ void hide_last(float (&scores)[EIGHTS][4], const Seen& seen)
{
#pragma unroll
    for (int j = EIGHTS - 1; j >= 0; --j) {
        if (seen.first + j * 8 + 8 <= seen.valid) break;
#pragma unroll
        for (int q = 0; q < 4; ++q)
            if (seen.first + j * 8 + int(threadIdx.x) % 4 * 2 + q % 2 >= seen.valid) scores[j][q] = -INFINITY;
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
        const auto biases = biases_at(bias_of, j);
        const bool some = SOME && (CAUSAL || WINDOW || seen.first + j * 8 + 8 > seen.valid);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int t = seen.first + j * 8 + lane % 4 * 2 + side;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float& score = scores[j][half * 2 + side];
                if (!RAW) score *= scale;
                if (SOFTCAP) score = softcap * tanhf(score / softcap);
                if (MASK != NO_MASK) score = biases(score, side, MASK_ROWS ? half : 0);
                if (some && is_hidden(t, seen.places[half], seen.valid, s)) score = -INFINITY;
                top[half] = fmaxf(top[half], score);
            }
        }
    }
}

// Prepares a thread's scores, and returns the greatest of each of its two rows.
template <int EIGHTS, typename Bias>
__device__ __forceinline__ void prepare_all(float (&scores)[EIGHTS][4], float (&top)[2], const Bias& bias_of,
                                            const Seen& seen, const Sizes& s, float scale, float softcap)
{
    const int last = seen.first + EIGHTS * 8 - 1;
    bool all = true;  // keys that a row sees are neighbours
#pragma unroll
    for (int half = 0; half < 2; ++half)
        all &= !is_hidden(seen.first, seen.places[half], seen.valid, s)
               && !is_hidden(last, seen.places[half], seen.valid, s);
    const bool every = __all_sync(~0u, all);
    if constexpr (LAST) {
        if (!every) hide_last(scores, seen);
        prepare<false>(scores, top, bias_of, seen, s, scale, softcap);
    } else {
        // In float32 registers do not suffice for two forms.
        if (sizeof(T) == 2 && every) prepare<false>(scores, top, bias_of, seen, s, scale, softcap);
        else prepare<true>(scores, top, bias_of, seen, s, scale, softcap);
    }
}

// Turns scores of a row, none of which exceeds `peak`, into weights.
struct Exponentials {
    float base, steep, shift;

    __device__ __forceinline__ Exponentials(float peak, float scale)
        : base(peak == -INFINITY ? 0.0f : peak), steep(steepness_at(base, scale)), shift(base * steep)
    {
    }

    __device__ __forceinline__ float of(float score) const
    {
        return exp2_of(DIFFERENCES ? (score - base) * steep : fmaf(score, steep, -shift));
    }

    // The factor of weights that were found with another peak.
    __device__ __forceinline__ float since(float peak) const { return exp2_of((peak - base) * steep); }
};

// A thread has two adjacent keys of every eight, of two rows: the fragment layout of a product's sums. `sum`
// covers the thread's own keys. `bias_of(eight, side, row)` is what the mask adds to a score. `rescale(row, by)` is called
// with the factor of a row's results so far.
template <int EIGHTS, typename Bias, typename Rescale>
__device__ __forceinline__ void weigh(float (&scores)[EIGHTS][4], float (&peak)[2], float (&sum)[2],
                                      const Bias& bias_of, const Seen& seen, const Sizes& s, float scale,
                                      float softcap, const Rescale& rescale)
{
    float top[2] = {-INFINITY, -INFINITY};
    prepare_all(scores, top, bias_of, seen, s, scale, softcap);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float most = fmaxf(peak[half], over_quad_max(top[half]));
        const Exponentials exponentials(most, scale);
        const float by = exponentials.since(peak[half]);
        peak[half] = most;
        float total = 0;
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
            if (j >= seen.count) break;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float& score = scores[j][half * 2 + side];
                score = exponentials.of(score);
                total += score;
            }
        }
        sum[half] = sum[half] * by + total;
        rescale(half, by);
    }
}

// Multiplies the results of one of a thread's rows.
template <int WIDE> __device__ __forceinline__ void multiply_row(float (&results)[WIDE][4], int half, float by)
{
#pragma unroll
    for (int j = 0; j < WIDE; ++j) {
        results[j][half * 2] *= by;
        results[j][half * 2 + 1] *= by;
    }
}

// The same where results are at rest: they are rescaled at once.
template <int EIGHTS, int WIDE, typename Bias>
__device__ __forceinline__ void weigh(float (&scores)[EIGHTS][4], float (&results)[WIDE][4],
                                      float (&peak)[2], float (&sum)[2], const Bias& bias_of,
                                      const Seen& seen, const Sizes& s, float scale, float softcap)
{
    weigh(scores, peak, sum, bias_of, seen, s, scale, softcap,
          [&](int half, float by) { multiply_row(results, half, by); });
}

// The same of weights that are computed in turn, those of sixteen keys at a time: `finished(i)` is called when those of the
// i-th sixteen are complete.
template <int EIGHTS, int WIDE, typename Bias, typename Finished>
__device__ __forceinline__ void weigh_in_turn(float (&scores)[EIGHTS][4], float (&results)[WIDE][4], float (&peak)[2],
                                              float (&sum)[2], const Bias& bias_of, const Seen& seen, const Sizes& s,
                                              float scale, float softcap, const Finished& finished)
{
    float top[2] = {-INFINITY, -INFINITY};
    prepare_all(scores, top, bias_of, seen, s, scale, softcap);
    for (int half = 0; half < 2; ++half) top[half] = fmaxf(peak[half], over_quad_max(top[half]));
    const Exponentials exponentials[2] = {{top[0], scale}, {top[1], scale}};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float by = exponentials[half].since(peak[half]);
        multiply_row(results, half, by);
        sum[half] *= by;
        peak[half] = top[half];
    }
#pragma unroll
    for (int i = 0; i < EIGHTS / 2; ++i) {
#pragma unroll
        for (int eight = 2 * i; eight < 2 * i + 2; ++eight)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                scores[eight][q] = exponentials[q / 2].of(scores[eight][q]);
                sum[q / 2] += scores[eight][q];
            }
        finished(i);
    }
}
