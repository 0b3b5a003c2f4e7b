// The weights of sixteen rows and KEYS keys in halves, each multiplied by the inverse scale of its values, and the
// inverses of the scales of the rows. See online_softmax.cuh for how a thread has them.
template <int KEYS> struct WeightHalves {
    u32 high[KEYS / 16][4], low[KEYS / 16][4];
    float inverse[2];

    // `of_values(eight)` returns the inverse scales of two values; `count` sixteens of keys have weights.
    template <typename Inverses>
    __device__ __forceinline__ void read(float (&weights)[KEYS / 8][4], const Inverses& of_values, int count)
    {
        float most[2] = {};
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
            if (j >= 2 * count) break;
            const float2 by = of_values(j);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                weights[j][half * 2] *= by.x, weights[j][half * 2 + 1] *= by.y;
                most[half] = fmaxf(most[half], fmaxf(weights[j][half * 2], weights[j][half * 2 + 1]));
            }
        }
        float scale[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const RowScale found(__float_as_uint(over_quad_max(most[half])));
            scale[half] = found.scale, inverse[half] = found.inverse;
        }
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) {
            if (c >= count) break;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float* pair = &weights[2 * c + e / 2][e % 2 * 2];
                const Halves halves(pair[0] * scale[e % 2], pair[1] * scale[e % 2]);
                high[c][e] = halves.high, low[c][e] = halves.low;
            }
        }
    }
};
