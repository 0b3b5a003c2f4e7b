// The end of a strip of 64 columns of a product whose first columns are heads that are rotated, as by attention/rotate.cuh:
// a thread has both elements of every pair, as tiles begin with whole heads.
//
// Compile-time: HEAD, elements of a head, a divisor or multiple of 64; HALF, its pairs; INTERLEAVED, whether their elements
// are adjacent, or HALF apart, a multiple of eight.

#include "gemm/turns.cuh"

constexpr int APART = INTERLEAVED ? 1 : HALF / 8;  // eights between elements of a pair
constexpr int KEPT = APART < 8 ? APART : 8;        // eights of pairs of a strip, at most
// The angles of all strips are the same, and read before a tile is multiplied, if there are registers.
constexpr bool SAME = !INTERLEAVED && HALF <= 64, READ_EARLY = SAME && BLOCKS * (BN / 2 + 4 * KEPT) <= MANY - 40;

// Cosines and sines of a thread's pairs in the columns of one row.
struct RowAngles {
    Pair real[KEPT], imaginary[KEPT];

    __device__ __forceinline__ void read(int strip, const Angles& angles, long long place)
    {
        const T *const cosine = angles.cosine + place * HALF, *const sine = angles.sine + place * HALF;
#pragma unroll
        for (int j = 0; j < KEPT; ++j) {
            const int pair = strip * 64 % HALF / 64 * 64 + j * 8 + threadIdx.x % 4 * 2;
            real[j] = pair_at(cosine, pair, place >= 0);
            imaginary[j] = pair_at(sine, pair, place >= 0);
        }
    }
};

// The angles of a group's rows.
struct GroupAngles {
    RowAngles at[BLOCKS][2];

    // Reads those of rows from m0 on, of which there are m.
    __device__ __forceinline__ void read(const Angles& angles, int m0, int m)
    {
        const int row = m0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = row + i * 64 + half * 8;
                at[i][half].read(0, angles, line < m ? angles.place(line) : -1);
            }
    }
};

// Rotates the sums of eights of columns of one row, of which a thread has two each, by adjacent elements: `sum(e, q)`
// returns its sum q of the eight e of the tile, and `keep(j, first, second)` takes those of the eight j of the strip.
template <typename Sum, typename Keep>
__device__ __forceinline__ void rotate_neighbours(int strip, const Angles& angles, long long place, const Sum& sum, const Keep& keep)
{
    const T *const cosine = angles.cosine + place * HALF, *const sine = angles.sine + place * HALF;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const int e = strip * 8 + j, pair = (e * 8 % HEAD + threadIdx.x % 4 * 2) / 2;
        const float first = sum(e, 0), second = sum(e, 1);
        const bool turns = pair < HALF, there = turns && place >= 0;
        const float c = there ? float(cosine[pair]) : 0, s = there ? float(sine[pair]) : 0;
        keep(j, turns ? c * first - s * second : first, turns ? s * first + c * second : second);
    }
}

// The same by elements that are HALF apart.
template <typename Sum, typename Keep>
__device__ __forceinline__ void rotate_halves(int strip, const RowAngles& angles, const Sum& sum, const Keep& keep)
{
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const int e = strip * 8 + j, within = e * 8 % HEAD;
        float found[2] = {sum(e, 0), sum(e, 1)};
        if (within < 2 * HALF) {
            const bool is_first = within < HALF;
            const int other = is_first ? e + APART : e - APART, angle = within % HALF / 8 % KEPT;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float c = float(angles.real[angle].at[q]), s = float(angles.imaginary[angle].at[q]);
                found[q] = c * found[q] + (is_first ? -s : s) * sum(other, q);
            }
        }
        keep(j, found[0], found[1]);
    }
}

// Finishes a strip of heads, which are rotated in the first columns, or of other columns, in `place`; see epilogue_strip.
__device__ __forceinline__ void rotated_strip(const float (&sums)[BLOCKS][TN][4], int strip, const Angles& angles,
                                              const GroupAngles& early, unsigned char* place, int m0, int m, int n0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane / 4;
    unsigned char* const mine = place + (warp * 16 + row) * 128 + lane % 4 * 4;
    const bool turns = n0 + strip * 64 < angles.by.columns;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int line = m0 + i * 64 + warp * 16 + half * 8 + row;
            const auto sum = [&](int e, int q) { return sums[i][e][half * 2 + q]; };
            const auto keep = [&](int j, float first, float second) {
                *(Result*)(mine + i * 8192 + half * 1024 + (j ^ row) * 16) = {R(first), R(second)};
            };
            if (!turns) {
#pragma unroll
                for (int j = 0; j < 8; ++j) keep(j, sum(strip * 8 + j, 0), sum(strip * 8 + j, 1));
            } else if constexpr (READ_EARLY) {
                rotate_halves(strip, early.at[i][half], sum, keep);
            } else {
                const long long place = line < m ? angles.place(line) : -1;
                if constexpr (INTERLEAVED) {
                    rotate_neighbours(strip, angles, place, sum, keep);
                } else {
                    RowAngles own;
                    own.read(strip, angles, place);
                    rotate_halves(strip, own, sum, keep);
                }
            }
        }
}
