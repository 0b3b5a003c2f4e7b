// Moments of rows that a product normalizes as it multiplies them: the product in front has stored the mean and the sum of
// squared differences from it of every 64 elements of a row, in float32.
//
// Compile-time: BM, rows of a block; K, elements of a row; CENTRED, whether a mean is subtracted.

constexpr int OF_PART = 64;  // elements of a row, of which there are moments

// The mean of each row of the tile and the inverse of its deviation, from the moments of its parts, which COUNT threads from
// FIRST on find; several neighbouring lanes have a row.
template <int FIRST, int COUNT> struct RowMoments {
    static constexpr int LANES = BM > COUNT / 2 ? 1 : BM > COUNT / 4 ? 2 : 4, PARTS = K / OF_PART, ROWS = COUNT / LANES;
    static constexpr int ROUNDS = (BM + ROWS - 1) / ROWS;

    // Stores them; `then(row, lane, moments)` is done with those of each row of the tensor, whose lanes are LANES.
    template <typename Then>
    static __device__ __forceinline__ void find(float2* to, const float2* moments, int m0, int m, float epsilon,
                                                const Then& then)
    {
        const int thread = (int)threadIdx.x - FIRST, lane = thread % LANES;
        if (thread < 0) return;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            const int row = round * ROWS + thread / LANES;
            const float2* const parts = moments + min(m0 + row, m - 1) * PARTS;
            const float first = parts[0].x;  // so that no digits cancel
            float total = 0, between = 0, within = 0;
#pragma unroll
            for (int part = lane; part < PARTS; part += LANES) {
                const float2 of_part = parts[part];
                const float from = of_part.x - (CENTRED ? first : 0.0f);
                total += from, between += from * from, within += of_part.y;
            }
#pragma unroll
            for (int other = 1; other < LANES; other *= 2) {
                total += __shfl_xor_sync(~0u, total, other);
                between += __shfl_xor_sync(~0u, between, other);
                within += __shfl_xor_sync(~0u, within, other);
            }
            const float mean = CENTRED ? total / PARTS : 0.0f;
            const float variance = within / K + fmaxf(between / PARTS - mean * mean, 0.0f);
            const float2 of_row = make_float2(CENTRED ? first + mean : 0.0f, 1 / sqrtf(variance + epsilon));
            if (row < BM && lane == 0) to[row] = of_row;
            if (row < BM && m0 + row < m) then.template operator()<LANES>(m0 + row, lane, of_row);
        }
    }
};
