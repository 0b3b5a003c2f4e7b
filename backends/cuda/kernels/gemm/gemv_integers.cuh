// The main loop of products of few rows with weights of a few bits, which are (integer - zero) * scale with one scale and
// zero point per BLOCK of terms; see gemv.cuh.
//
// Integers are converted to 16-bit numbers by inserting them into the last bits of 2^10 (2^7 in bfloat16). They are
// small enough to be exact; the sums of a block are scaled in float32, and zero points are subtracted by the sum of x,
// which an additional product with ones computes. In float16, integers of four bits are inserted into 2^10, or 2^6 if four
// zero bits follow, and may keep that until then (RAW). Rows of float32 are three planes of bfloat16.
//
// Words of integers are packed so that word j of the four lanes of a row has adjacent terms. In shorter blocks (SHORT), sixteen
// adjacent terms are four of each lane, so that each product is of one block. Scales are copied to shared
// memory, whole rows of them: a warp would read a few bytes from each of eight distant rows.
//
// Compile-time, besides the constants of gemv.cuh: X, the type of x and of the results; T, the type that is multiplied;
// BITS; BLOCK; ZEROS, whether every scale has a zero point, else it is 2^(BITS - 1); STEPS; K terms of a row; BYTES and
// BLOCKS of a row in memory; EDGE, whether thread blocks extend past the last row; VECTOR, whether x is read in words.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
using Y = X;
constexpr int SLICE = STEPS * 16 * (32 / BITS);
#include "gemm/gemv.cuh"

constexpr int EACH = 32 / BITS, QUARTER = 4 * EACH, STEP = 4 * QUARTER;  // terms of u32, four lanes, a step
constexpr int STRIDE = WARPS * STEPS * STEP;
constexpr int SCALES = STEP > BLOCK ? STEP / BLOCK : 1;  // of a step
constexpr bool BRAIN = KIND[0] == 'b';
constexpr int MIDDLE = 1 << (BITS - 1);
constexpr u32 ONES = BRAIN ? 0x3f803f80 : 0x3c003c00, BASE = BRAIN ? 0x43004300 : 0x64006400;
constexpr u32 LESS = (BASE | MIDDLE | MIDDLE << 16) ^ 0x80008000;  // -(base + middle)
constexpr bool FOUR_BITS = BITS == 4 && !BRAIN;
// Corrections of sums take as many instructions for 32 rows of weights, or a single row of x, as for 16; others are less.
constexpr bool RAW = FOUR_BITS && (M == 1 || EIGHTS >= 4);
constexpr u32 UPPER_BASE = 0x54005400;  // whose unit is the fourth bit
constexpr u32 UPPER_LESS = 0xd480d480;  // -(2^6 + 8)
constexpr u32 EXCESS = 0x64086408, UPPER_EXCESS = 0x54805480;  // 2^10 + 8 and 2^6 + 8
constexpr bool SHORT = BLOCK < QUARTER;
constexpr int SINGLE = SHORT ? 16 : QUARTER;  // adjacent terms of four lanes, each of which has a fourth of them
constexpr int SINGLES = QUARTER / SINGLE, SECTIONS = SHORT ? QUARTER / BLOCK : 1;  // of four words; blocks of these
static_assert(BLOCK % SINGLE == 0 && (!SHORT || QUARTER % BLOCK == 0), "adjacent terms are of one block");

__device__ constexpr int alignment(int bytes) { return bytes < 16 ? bytes : 16; }
struct alignas(alignment(SCALES * (1 + ZEROS) * sizeof(X))) Scales {
    X at[SCALES][1 + ZEROS];
};
constexpr int OF_LANE = SINGLE / 4;  // adjacent terms of a lane
struct alignas(alignment(OF_LANE * sizeof(X))) Values {
    X at[OF_LANE];
};

// The words of STEPS steps of a thread.
struct Buffer {
    Word w[STEPS][EIGHTS];
};

// Where a lane reads: its first row, and the distance to the rows of the other fragments of the same product.
struct Rows {
    const unsigned char* w[PRODUCTS];
    long long steps[EDGE ? EIGHTS / PRODUCTS : 1];

    __device__ __forceinline__ long long step(int e) const
    {
        const int eight = e / PRODUCTS;
        return EDGE ? steps[EDGE ? eight : 0] : 8 * eight;
    }
};

// Where a lane reads the rows of weights of a tile from row n0 on.
__device__ __forceinline__ Rows rows_from(const unsigned char* w0, const unsigned char* w1, int n0, int n)
{
    const int lane = threadIdx.x % 32;
    const long long first = min(n0 + lane / 4, n - 1);
    Rows rows = {};
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) rows.w[p] = (p ? w1 : w0) + first * BYTES + lane % 4 * 16;
    if constexpr (EDGE) {
#pragma unroll
        for (int e = 0; e < EIGHTS / PRODUCTS; ++e)
            rows.steps[e] = min(n0 + 8 * e + lane / 4, n - 1) - first;
    }
    return rows;
}

// The scales of a tile's rows in shared memory, behind the row of x, or those of another one behind them. Their distance
// avoids bank conflicts.
constexpr int ROW_SCALES = BLOCKS * (1 + ZEROS) * sizeof(X), PITCH_SCALES = (ROW_SCALES + 15) / 16 * 16 + 16;

__device__ __forceinline__ unsigned char* scale_memory(int tile = 0)
{
    return (unsigned char*)row_memory() + (NORMALIZED ? (2 + SHIFTED) * ROW * sizeof(Y) : 0) + tile * ROWS * PITCH_SCALES;
}

// Starts to copy them; they are there after cp_async_wait and a barrier of the block.
__device__ __forceinline__ void copy_scales(const X* scales0, const X* scales1, int n0, int n,
                                            unsigned char* to = scale_memory())
{
    constexpr int PIECE = ROW_SCALES % 16 == 0 ? 16 : ROW_SCALES % 8 == 0 ? 8 : 4, PIECES = ROW_SCALES / PIECE;
    static_assert(ROW_SCALES % PIECE == 0, "rows of scales are whole words");
#pragma unroll 4
    for (int base = 0; base < ROWS * PIECES; base += THREADS) {
        const unsigned i = base + threadIdx.x;
        if (ROWS * PIECES % THREADS && i >= ROWS * PIECES) break;
        const unsigned row = i / PIECES, byte = i % PIECES * PIECE, eight = row / 8;
        const long long from = min(n0 + int(eight / PRODUCTS * 8 + row % 8), n - 1);
        const unsigned char* const scales = (const unsigned char*)(eight % PRODUCTS ? scales1 : scales0);
        cp_async<PIECE / sizeof(T)>(shared_address(to + row * PITCH_SCALES + byte),
                                    (const T*)(scales + from * ROW_SCALES + byte), true);
    }
    cp_async_commit();
}

__device__ __forceinline__ void load_weights(Buffer& to, const Rows& rows, int k)
{
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int from = k + s * STEP;
        if (from >= K) break;
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
            to.w[s][e] = constant_word(rows.w[e % PRODUCTS] + from / STEP * 64 + rows.step(e) * BYTES);
    }
}

// Masks of two integers. The compiler does not know their values and so keeps them in registers instead of
// rematerializing them for each use.
struct Masks {
    u32 of[2];

    __device__ __forceinline__ Masks() : of{0x000f000f, 0x00f000f0}
    {
        asm volatile("// kept;" : "+r"(of[0]), "+r"(of[1]));
    }
};

// The integers of a word, minus MIDDLE unless they are RAW, as pairs of neighbours.
__device__ __forceinline__ void unpack(u32 (&to)[EACH / 2], u32 word, const Masks& masks)
{
    if constexpr (BITS == 8 && BRAIN) {
#pragma unroll
        for (int i = 0; i < EACH / 2; ++i) {
            const u32 first = __byte_perm(word, 0x4b000000, 0x7440 + 2 * i);
            const u32 second = __byte_perm(word, 0x4b000000, 0x7441 + 2 * i);
            to[i] = __byte_perm(__float_as_uint(__uint_as_float(first) - (8388608.0f + MIDDLE)),
                                __float_as_uint(__uint_as_float(second) - (8388608.0f + MIDDLE)), 0x7632);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH / 2; ++i) {
            if constexpr (BITS == 8) {
                to[i] = pair_fma(__byte_perm(word, BASE, i == 0 ? 0x5150 : 0x5352), ONES, LESS);
            } else if (FOUR_BITS) {
                to[i] = and_or(word >> i % 2 * 8, masks.of[i / 2], i < 2 ? BASE : UPPER_BASE);
                if (!RAW) to[i] = pair_fma(to[i], ONES, i < 2 ? LESS : UPPER_LESS);
            } else {
                constexpr u32 MASK = ((1u << BITS) - 1) * 0x10001;
                to[i] = pair_fma((word >> (i % 2 * 8 + i / 2 * BITS) & MASK) | BASE, ONES, LESS);
            }
        }
    }
}

// The place of a lane's first terms, of those that four words have from k on.
__device__ __forceinline__ int first_of_lane(int k) { return k + threadIdx.x % 4 * OF_LANE; }

// Adjacent numbers of a row of x from k on, zeros beyond the last one.
__device__ __forceinline__ Values values_at(const X* row, int k)
{
    Values found = {};
    if constexpr (K % STEP == 0) {
        found = *(const Values*)(row + k);
    } else if constexpr (VECTOR) {
        if (k < K) found = *(const Values*)(row + k);
    } else {
#pragma unroll
        for (int q = 0; q < OF_LANE; ++q)
            if (k + q < K) found.at[q] = row[k + q];
    }
    return found;
}

// The numbers of a row of x in the same order, of one of its planes; k is the place of the lane's first terms.
__device__ __forceinline__ void load_values(u32 (&to)[EACH / 2], const X* row, int plane, int k)
{
#pragma unroll
    for (int single = 0; single < SINGLES; ++single) {
        const Values found = values_at(row, k + single * SINGLE);
        const u32* const words = (const u32*)found.at;
#pragma unroll
        for (int i = 0; i < OF_LANE / 2; ++i) {
            u32& number = to[single * (OF_LANE / 2) + i];
            if constexpr (PLANES == 1) {
                number = words[i];
            } else {
                float first = found.at[2 * i], second = found.at[2 * i + 1];
                for (int p = 0; p < plane; ++p) {
                    first -= __uint_as_float(__float_as_uint(first) & 0xffff0000);
                    second -= __uint_as_float(__float_as_uint(second) & 0xffff0000);
                }
                number = __byte_perm(__float_as_uint(first), __float_as_uint(second), 0x7632);
            }
        }
    }
}

// Sums of a block: of its integers times x; of their excess times x; and of x.
struct Block {
    float of[PAIRS][GROUPS][4], excess[GROUPS][4], x[GROUPS][4];
};

// Adds the product of one fragment, all of whose elements are `number`, with values of x.
__device__ __forceinline__ void add_constant(float (&sums)[4], u32 number, u32 first, u32 second)
{
    const u32 a[4] = {number, number, number, number};
    mma_m16n8k16(sums, a, first, second);
}

// A single row leaves columns of the right operand, which may be the quarters of a step: their products with constants,
// for `excess` and `x`, are then computed at once.
constexpr bool QUARTERED = COLUMNS == 1 && EACH == 8;

// Returns the products of four quarters of x, of which a lane of column c has its terms of quarter c % 4, with two
// constants, in lanes of the first column; of each block of a quarter by itself.
__device__ __forceinline__ void add_quarters(float (&to)[SECTIONS][4], const u32 (&x)[EACH / 2], u32 first, u32 second)
{
    float found[SECTIONS][4] = {};
    add_constant(found[0], first, x[0], x[1]);
    add_constant(found[SECTIONS - 1], second, x[EACH / 2 - 2], x[EACH / 2 - 1]);
#pragma unroll
    for (int section = 0; section < SECTIONS; ++section) {
        to[section][0] = found[section][0];
        to[section][1] = found[section][1];
        to[section][2] = __shfl_down_sync(~0u, found[section][0], 1);
        to[section][3] = __shfl_down_sync(~0u, found[section][1], 1);
    }
}

// The block among those of four words of which product number i is.
__device__ constexpr int section_of(int i) { return i * SECTIONS / (EACH / 4); }

// Adds the products of word number j of four lanes.
__device__ __forceinline__ void add_words(Block (&sums)[SECTIONS], const Word (&w)[EIGHTS], int j,
                                          const u32 (&values)[GROUPS][EACH / 2], const Masks& masks)
{
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        u32 upper[EACH / 2], lower[EACH / 2] = {};
        unpack(upper, w[2 * pair].at[j], masks);
        if (2 * pair + 1 < EIGHTS) unpack(lower, w[2 * pair + 1].at[j], masks);
#pragma unroll
        for (int i = 0; i < EACH / 4; ++i) {
            const int t = 2 * i;
            const u32 a[4] = {upper[t], lower[t], upper[t + 1], lower[t + 1]};
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
                mma_m16n8k16(sums[section_of(i)].of[pair][group], a, values[group][t], values[group][t + 1]);
        }
    }
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        if constexpr (QUARTERED) break;
        const u32(&x)[EACH / 2] = values[group];
        if constexpr (RAW) {
            add_constant(sums[0].excess[group], EXCESS, x[0], x[1]);
            add_constant(sums[section_of(1)].excess[group], UPPER_EXCESS, x[2], x[3]);
        }
        if constexpr (ZEROS) {
#pragma unroll
            for (int t = 0; t < EACH / 2; t += 2)
                add_constant(sums[section_of(t / 2)].x[group], ONES, x[t], x[t + 1]);
        }
    }
}

// Adds the scaled sums of a block to the total, and starts the next block.
__device__ __forceinline__ void add_block(float (&sums)[PAIRS][GROUPS][4], Block& block,
                                          const Scales (&scales)[EIGHTS], int number)
{
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
        const X* const own = scales[e].at[number];
        const float scale = own[0], shift = ZEROS ? MIDDLE - float(own[1 * ZEROS]) : 0.0f;
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int side = 0; side < (COLUMNS > 1 ? 2 : 1); ++side) {
                const int q = e % 2 * 2 + side;
                float sum = block.of[e / 2][group][q];
                if (RAW) sum -= block.excess[group][side];
                if (ZEROS) sum = fmaf(shift, block.x[group][side], sum);
                sums[e / 2][group][q] = fmaf(scale, sum, sums[e / 2][group][q]);
            }
    }
    block = {};
}

// Whether a source of rows scales what a lane has read of them, as in scaled_rows.cuh.
template <typename Source> constexpr bool IS_SCALED = false;

// Adds the products of STEPS steps, with the scales of a block's rows. `x.row(group, m)` is where this lane reads row m,
// of a group of eight columns. Unless it CHECKS, all of these steps are there.
template <bool CHECKS = true, typename Source>
__device__ __forceinline__ void multiply(float (&sums)[PAIRS][GROUPS][4], const Buffer& from, Source& x, int k,
                                         const Masks& masks, const unsigned char* of_rows = scale_memory())
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        if (CHECKS && k + s * STEP >= K) break;
        u32 values[4][GROUPS][EACH / 2];
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                // Results past the last column are discarded.
                const int column = min(group * 8 + lane / 4, COLUMNS - 1), m = column / PLANES;
                load_values(values[j][group], x.row(group, m), column % PLANES,
                            first_of_lane(k + s * STEP + j * QUARTER));
            }
        float2 divisors = {1, 1};
        if constexpr (IS_SCALED<Source>) divisors = x.scale(values, k + s * STEP);
        float of_step[PAIRS][GROUPS][4] = {};
        float(&to)[PAIRS][GROUPS][4] = IS_SCALED<Source> ? of_step : sums;
        Scales scales[EIGHTS];
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
            scales[e] = *(const Scales*)(of_rows + (8 * e + lane / 4) * PITCH_SCALES
                                         + (k + s * STEP) / BLOCK * (1 + ZEROS) * sizeof(X));
        float excess[SECTIONS][4] = {}, of_x[SECTIONS][4] = {};  // of quarters
        if constexpr (QUARTERED && (RAW || ZEROS)) {
            u32 quarters[EACH / 2];
            load_values(quarters, x.row(0, 0), 0, first_of_lane(k + s * STEP + lane / 4 % 4 * QUARTER));
            if (RAW) add_quarters(excess, quarters, EXCESS, UPPER_EXCESS);
            if (ZEROS) add_quarters(of_x, quarters, ONES, ONES);
        }
        Block blocks[SECTIONS] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            add_words(blocks, from.w[s], j, values[j], masks);
            if constexpr (QUARTERED)
#pragma unroll
                for (int section = 0; section < SECTIONS; ++section) {
                    blocks[section].excess[0][0] += excess[section][j];
                    blocks[section].x[0][0] += of_x[section][j];
                }
            if ((j + 1) * SCALES % 4 != 0) continue;
#pragma unroll
            for (int section = 0; section < SECTIONS; ++section)
                add_block(to, blocks[section], scales, j * SCALES / 4 + section);
        }
        if constexpr (IS_SCALED<Source>) {
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    sums[pair][0][q] = fmaf(q % 2 ? divisors.y : divisors.x, to[pair][0][q], sums[pair][0][q]);
        }
    }
}

// Adds the products of a warp's terms from `at` on, APART apart, the first of which two buffers have.
template <int APART, typename Source>
__device__ __forceinline__ void multiply_all(float (&sums)[PAIRS][GROUPS][4], Buffer& now, Buffer& next, const Rows& rows,
                                             const Source& x, int at, const Masks& masks,
                                             const unsigned char* of_rows = scale_memory())
{
    for (; at < K; at += 2 * APART) {
        multiply(sums, now, x, at, masks, of_rows);
        load_weights(now, rows, at + 2 * APART);
        multiply(sums, next, x, at + APART, masks, of_rows);
        load_weights(next, rows, at + 3 * APART);
    }
}
