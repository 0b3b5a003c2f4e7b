// c[m][n] = epilogue(sum over k of a[m][k] * w(n, k) + bias[n]): products of 16-bit floats with weights of a few bits,
// which are (integer - zero) * scale with one scale and zero point per BLOCK of terms; for enough rows to amortize the
// unpacking.
//
// Weights are the left operand of mma.sync, so that few rows fill it, in the layout of gemv.cu: a lane has a word of 16
// bytes of row lane / 4 of every eight, four lanes the 64 bytes of a row that are a step, and word j of these four has
// adjacent terms. cp.async copies weights and rows of `a` to shared memory, STAGES ahead: in registers, the assembler
// would have each step wait for all loads in flight. A lane copies its own weights, and reads the terms of `a` that match
// them, so that terms are permuted equally on both sides.
//
// A block has BN rows of weights, 32 per warp, and BM rows of `a`. SLICES of its warps have the same rows and
// alternate between the steps (sliced-K). Sums of slices, and of the blocks that share a tile (`splits`: a cluster, or
// partial sums for reduce_splits_f16.cu), are added up in a fixed order.
//
// The kernel starts while the preceding one still runs: it copies weights, which are constants, and then waits.
//
// Types: T, of `a`; Z, of the epilogue's operands; R, of results. Compile-time: BM BN SLICES STAGES RESIDENT; BITS;
// BLOCK; ZEROS, whether every scale has a zero point, else it is 2^(BITS - 1); K terms of a row; BYTES and BLOCKS of a
// row in memory; EDGE, whether blocks extend past the last row of weights; VECTOR, the elements of `a` per copy; SPLIT
// and the constants of the epilogue, see multistage.cu.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/cluster.cuh"
#include "gemm/dequantize.cuh"

constexpr int EIGHTS = 4, PAIRS = EIGHTS / 2, GROUPS = BM / 8;  // of a warp's rows of weights, and of rows of `a`
constexpr int WARPS_N = BN / (EIGHTS * 8), THREADS = 32 * WARPS_N * SLICES, AHEAD = STAGES - 1;
constexpr int QUARTER = 4 * EACH, STEP = 4 * QUARTER, WIDTH = SLICES * STEP;  // terms of four lanes, a step, a stage
constexpr int STEPS = (K + STEP - 1) / STEP;
constexpr int ROW = WIDTH * sizeof(T), BYTES_ROWS = BM * ROW;
constexpr int PITCH = BN + 4;  // of the sums in shared memory
enum { WHOLE, PARTIAL, CLUSTER };

struct Block {  // the tile of a block, and which of the blocks that share it this one is
    int m0, n0, split, splits;
    static constexpr int batch = 0;

    // Tiles of the same weights are adjacent.
    __device__ __forceinline__ Block(int tiles_m) : split(blockIdx.y), splits(gridDim.y)
    {
        const int tile_n = blockIdx.x / tiles_m;
        n0 = tile_n * BN, m0 = (blockIdx.x - tile_n * tiles_m) * BM;
    }
};

#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"

// ── weights ─────────────────────────────────────────────────────────────────────────────────────

// Where a lane reads: its first row, and the distance to its other rows.
struct Rows {
    const unsigned char* first;
    int steps[EDGE ? EIGHTS : 1];

    __device__ __forceinline__ Rows(const unsigned char* w, int row, int n)
    {
        const int lane = threadIdx.x % 32, own = row + lane / 4, at = EDGE ? min(own, n - 1) : own;
        first = w + (long long)at * BYTES + lane % 4 * 16;
        if constexpr (EDGE) {
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) steps[e] = min(own + 8 * e, n - 1) - at;
        }
    }

    // Copies the words of a lane for a step to `to`, those of all lanes of a row of eight side by side.
    __device__ __forceinline__ void copy(unsigned char* to, int step) const
    {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e)
            cp_async<16 / sizeof(T)>(shared_address(to + e * 512),
                                     (const T*)(first + step * 64 + (long long)(EDGE ? steps[e] : 8 * e) * BYTES), true);
    }
};

// The scales of a row in a step, or in two where a word of four bytes spans two steps; a multiple of four bytes.
constexpr int FACTORS = STEP > BLOCK ? STEP / BLOCK : ZEROS ? 1 : 2, FACTOR = (1 + ZEROS) * sizeof(T);
constexpr int SPAN = FACTORS * FACTOR, BYTES_FACTORS = SLICES * BN * SPAN, BYTES_WORDS = SLICES * BN * 64;
constexpr int BYTES_STAGE = BYTES_ROWS + (BYTES_FACTORS + 15) / 16 * 16 + BYTES_WORDS;

__device__ __forceinline__ int factor_of(int step) { return step * STEP / BLOCK; }

// Copies the scales of a stage.
__device__ __forceinline__ void copy_factors(unsigned char* to, const T* scales, int n0, int n, int stage)
{
    constexpr int COPY = SPAN < 16 ? SPAN : 16, PER_ROW = SPAN / COPY, COUNT = SLICES * BN * PER_ROW;
#pragma unroll
    for (int item = threadIdx.x; item < COUNT; item += THREADS) {
        const int row = item / PER_ROW % BN, step = stage * SLICES + item / PER_ROW / BN;
        const int number = factor_of(step) / FACTORS * FACTORS;
        const bool inside = n0 + row < n && step < STEPS;
        const long long at = inside ? ((long long)(n0 + row) * BLOCKS + number) * (1 + ZEROS) : 0;
        const T* const from = scales + at + item % PER_ROW * (COPY / (int)sizeof(T));
        cp_async<COPY / sizeof(T)>(shared_address(to + item * COPY), from, inside);
    }
}

// ── rows of `a` ─────────────────────────────────────────────────────────────────────────────────

// The position of byte number `byte` of a row: concurrent reads of lanes fall into different banks.
__device__ __forceinline__ int place(int row, int byte)
{
    const int turn = BITS == 8 ? (row & 3) << 5 : BITS == 4 ? (row & 1) << 6 : (row & 1) << 4;
    return row * ROW + (byte ^ turn);
}

// Copies the terms of a stage, and zeros past the last term and the last row.
__device__ __forceinline__ void copy_rows(unsigned char* stage, const T* a, int m0, int m, int k0)
{
    constexpr int PER_ROW = WIDTH / VECTOR, COUNT = BM * PER_ROW;
#pragma unroll 4
    for (int item = threadIdx.x; item < COUNT; item += THREADS) {
        const int row = item / PER_ROW, k = item % PER_ROW * VECTOR;
        const bool inside = m0 + row < m && k0 + k < K;
        const T* const from = a + (inside ? (m0 + row) * K + k0 + k : 0);
        unsigned char* const to = stage + place(row, k * sizeof(T));
        if constexpr (VECTOR > 1) cp_async<VECTOR>(shared_address(to), from, inside);
        else *(T*)to = inside ? *from : T(0.0f);
    }
}

struct alignas(EACH < 8 ? 8 : 16) Values {
    u32 at[EACH < 8 ? 2 : 4];
};

// The terms of `row` that match the weights of a lane, in the same order, from the first one on.
__device__ __forceinline__ void load_values(u32 (&to)[EACH / 2], const unsigned char* stage, int row, int k)
{
    u32 words[EACH / 2];
#pragma unroll
    for (int i = 0; i < EACH / 2; i += sizeof(Values) / 4) {
        const Values found = *(const Values*)(stage + place(row, (k + 2 * i) * sizeof(T)));
#pragma unroll
        for (int q = 0; q < sizeof(Values) / 4; ++q) words[i + q] = found.at[q];
    }
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i)
        to[i] = BITS == 8 ? words[i]
                          : __byte_perm(words[i / 2], words[i / 2 + EACH / 4], i % 2 ? 0x7632 : 0x5410);
}

// ── sums ────────────────────────────────────────────────────────────────────────────────────────

typedef float Sums[PAIRS][GROUPS][4];

// The number of words of a step that are unpacked together: all of them if the registers suffice.
constexpr int REGISTERS = 65536 / (THREADS * RESIDENT) < 255 ? 65536 / (THREADS * RESIDENT) : 255;
constexpr int AT_ONCE = REGISTERS - PAIRS * GROUPS * 4 - EIGHTS * (4 + EACH / 2) > 128 ? 4 : 1;

// A warp's operands of a stage in shared memory.
struct Step {
    const unsigned char *rows, *factors;
    int k, number;  // its first term in the stage, and which step it is
};

// Adds the products of a step, whose weights can be overwritten afterwards.
__device__ __forceinline__ void multiply(Sums& sums, Word (&w)[EIGHTS], const Step& step, const Masks& masks)
{
    const int lane = threadIdx.x % 32;
    const unsigned char* const own = step.factors + lane / 4 * SPAN;
#pragma unroll AT_ONCE
    for (int j = 0; j < 4; ++j) {
        const int k = j * QUARTER + lane % 4 * EACH;
        const int number = STEP > BLOCK ? k / BLOCK : factor_of(step.number) % FACTORS;
        u32 a[PAIRS][EACH / 4][4];
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            u32 weights[EACH / 2];
            dequantize(weights, w[e].at[0], Factor(own + e * 8 * SPAN + number * FACTOR), masks);
#pragma unroll
            for (int i = 0; i < EACH / 2; ++i) a[e / 2][i / 2][i % 2 * 2 + e % 2] = weights[i];
        }
#pragma unroll
        for (int group = 0; group < GROUPS; ++group) {
            u32 x[EACH / 2];
            load_values(x, step.rows, group * 8 + lane / 4, step.k + k);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
                for (int i = 0; i < EACH / 4; ++i) MMA(sums[pair][group], a[pair][i], x[2 * i], x[2 * i + 1]);
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) w[e] = {w[e].at[1], w[e].at[2], w[e].at[3], 0};
    }
}

// Stores the sums of a warp in shared memory as rows of results, and adds up those of all slices.
__device__ __forceinline__ void gather(float* parts, const Sums& sums, int slice, int n)
{
    const int lane = threadIdx.x % 32;
    float* const own = parts + slice * (BM * PITCH) + lane % 4 * 2 * PITCH + n + lane / 4;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int q = 0; q < 4; ++q)
                own[(group * 8 + q % 2) * PITCH + pair * 16 + q / 2 * 8] = sums[pair][group][q];
    if constexpr (SLICES > 1) {
        __syncthreads();
        add_slices<SLICES>(parts, threadIdx.x, THREADS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
mixed_input(const T* a, const unsigned char* w, const T* scales, void* c, const Z* bias, const Z* z0, const Z* z1,
            int m, int n, int tiles_m)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(tiles_m);
    const int warp = threadIdx.x / 32, slice = warp / WARPS_N, own_n = warp % WARPS_N * (EIGHTS * 8);
    constexpr int ALL = (STEPS + SLICES - 1) / SLICES;
    const int first = ALL * block.split / block.splits, end = ALL * (block.split + 1) / block.splits;

    const Rows rows(w, block.n0 + own_n, n);
    const auto buffer = [&](int stage) { return shared + (stage - first) % STAGES * BYTES_STAGE; };
    const auto own_words = [&](int stage) {
        return buffer(stage) + (BYTES_STAGE - BYTES_WORDS) + warp * (EIGHTS * 512) + threadIdx.x % 32 * 16;
    };
    const auto load_constants = [&](int stage) {
        if (stage >= end) return;
        const int step = stage * SLICES + slice;
        if (step < STEPS) rows.copy(own_words(stage), step);
        copy_factors(buffer(stage) + BYTES_ROWS, scales, block.n0, n, stage);
    };
    const auto load_rows = [&](int stage) {
        if (stage < end) copy_rows(buffer(stage), a, block.m0, m, stage * WIDTH);
        cp_async_commit();  // also an empty group, so that counting groups counts stages
    };
    grid_dependency_launch();
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) load_constants(first + stage);
    grid_dependency_sync();
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) load_rows(first + stage);

    const Masks masks;
    Sums sums = {};
    for (int stage = first; stage < end; ++stage) {
        cp_async_wait<AHEAD - 1>();
        __syncthreads();
        load_constants(stage + AHEAD);
        load_rows(stage + AHEAD);
        const int step = stage * SLICES + slice;
        if (step >= STEPS) continue;
        const unsigned char* const factors = buffer(stage) + BYTES_ROWS + (slice * BN + own_n) * SPAN;
        Word words[EIGHTS];
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) words[e] = *(const Word*)(own_words(stage) + e * 512);
        multiply(sums, words, {buffer(stage), factors, slice * STEP, step}, masks);
    }
    cp_async_wait<0>();
    __syncthreads();
    gather((float*)shared, sums, slice, own_n);
    Finish{c, bias, z0, z1, m, n, n, 0, 0}.store(shared, block);
}
