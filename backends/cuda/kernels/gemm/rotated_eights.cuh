// Stores eight adjacent results of a row, rotated if they are those of a head in the first columns; other columns are stored
// apart. Neighbouring threads have a head; see rotated_strip.cuh.
//
// Compile-time: ROTATES; HEAD, at most the columns of a tile; HALF; INTERLEAVED.

#include "gemm/turns.cuh"

struct Turning {
    Angles angles;
    R *to, *others;
    int n;  // all columns

    template <typename Results> __device__ __forceinline__ void store(const Results& results, int row, int column) const
    {
        const int turned = angles.by.columns;
        if (column >= turned) {
            keep(others + (long long)row * (n - turned) + column - turned, results, n - column);
            return;
        }
        keep(to + (long long)row * min(turned, n) + column, rotated(results, row, column % HEAD), n - column);
    }

private:
    template <typename Results> __device__ __forceinline__ Results rotated(Results results, int row, int within) const
    {
        const long long place = angles.place(row);
        const T *const cosine = angles.cosine + place * HALF, *const sine = angles.sine + place * HALF;
        const auto turn = [&](int pair, float own, float other) {
            const float c = place >= 0 ? float(cosine[pair]) : 0, s = place >= 0 ? float(sine[pair]) : 0;
            return R(c * own + s * other);
        };
        if constexpr (INTERLEAVED) {
#pragma unroll
            for (int q = 0; q < 8; q += 2) {
                const int pair = (within + q) / 2;
                const float first = results.at[q], second = results.at[q + 1];
                if (pair < HALF) results.at[q] = turn(pair, first, -second), results.at[q + 1] = turn(pair, second, first);
            }
            return results;
        }
        // All threads with columns of a head, or of 64 columns, take part.
        constexpr int LANES = HEAD > 64 ? HEAD / 8 : 8;
        const int lane = threadIdx.x % 32, apart = within < HALF ? HALF / 8 : within < 2 * HALF ? -HALF / 8 : 0;
        const u32 lanes = (LANES == 32 ? ~0u : (1u << LANES % 32) - 1) << lane / LANES * LANES;
#pragma unroll
        for (int q = 0; q < 8; ++q) {
            const float own = results.at[q], other = __shfl_sync(lanes, own, lane + apart);
            if (apart != 0) results.at[q] = turn(within % HALF + q, own, apart > 0 ? -other : other);
        }
        return results;
    }
};
