// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) in float32 on Hopper, for matrices of many rows. The main loop
// is that of wgmma_rs.cu with numbers as two float16; as in tma_persistent.cu, TMA also loads the operand of the epilogue
// during the main loop, and stores the results during the next one.
//
// Persistent and warp-specialized: a CTA processes tile after tile. One thread loads tiles of `b`, one the rows of `a`, and one
// manages the buffers of results in shared memory, each of 32 columns of a tile: it first loads an operand of `epilogue` into
// a buffer, and stores the results that the GROUPS consumer warpgroups write there instead, while they finish the next
// columns. Results have rows of 128 bytes in swizzled order, as tiles of `a` have.
//
// With IN_HALVES, results are stored in halves, as pixels (store_halves.cuh): a strip holds the halves of 32 columns. With PLAIN
// as well, two strips of a block of columns as they are come before those in halves.
//
// Compile-time, besides those of steps_rs.cuh: GROUPS; BN; PLACES, the buffers for results; REGISTERS and LOADER_REGISTERS per
// thread; CONSTANT, whether `b` existed before the preceding kernels started; APART, whether rows are pixels that are not
// adjacent, of an image that a map for windows (im2col) describes; BIAS, Z0 and Z1 as in epilogue.cuh: 0, 2, or one of them 1,
// and PERIOD, the rows after which that repeats, or 0; and the wgmma instruction.

constexpr int BM = GROUPS * 64, CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"
#include "gemm/halves.cuh"

constexpr int BYTES_A = BM * 128, BYTES_B = BN * 128, TN = BN / 8, BYTES_STAGE = BYTES_A + BYTES_B;
constexpr int STRIP = 64 * 128, PIECES = BN / 32 * (IN_HALVES && PLAIN ? 2 : 1);  // of the results of a group
constexpr int PLACE = GROUPS * STRIP, RESULTS = STAGES * BYTES_STAGE, BARRIERS = RESULTS + PLACES * PLACE;
constexpr bool ALONG = Z0 == 1 || Z1 == 1;
static_assert(!IN_HALVES || BN % 64 == 0, "whole blocks");

#include "gemm/step_f16x3.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/steps_rs.cuh"
#include "gemm/store_halves.cuh"

struct Work {  // the problem, for all blocks
    int m, n, tiles_n, tiles, steps, rows_b;
    int pixels, columns, stride_h, stride_w;  // of an image of results, and of one of its rows; with APART
};

struct Corner {
    int m, n;

    __device__ __forceinline__ Corner(int tile, const Work& work)
    {
        const int number = in_order(tile, work.tiles);
        m = number / work.tiles_n * BM, n = number % work.tiles_n * BN;
    }
};

// A strip of 32 columns of one of the block's tiles, and its place: for the part of each group a barrier says that it is
// ready, with the operand, and another that it has the results.
struct Strip {
    int count;
    __device__ __forceinline__ int tile() const { return blockIdx.x + count / PIECES * gridDim.x; }
    __device__ __forceinline__ bool in_halves() const { return IN_HALVES && (!PLAIN || count % 4 >= 2); }
    __device__ __forceinline__ bool has_operand() const { return ALONG && (!PLAIN || !in_halves()); }
    __device__ __forceinline__ int column() const
    {
        const int piece = count % PIECES;
        return (IN_HALVES && PLAIN ? piece / 4 * 2 + piece % 2 : piece) * 32;
    }
    __device__ __forceinline__ int part(int group) const { return RESULTS + (count % PLACES * GROUPS + group) * STRIP; }
    __device__ __forceinline__ int ready(int group) const { return BARRIERS + STAGES * 16 + (count % PLACES * GROUPS + group) * 8; }
    __device__ __forceinline__ int done(int group) const { return ready(group) + PLACES * GROUPS * 8; }
    __device__ __forceinline__ u32 parity() const { return count / PLACES & 1; }
};

// ── what single threads do ──────────────────────────────────────────────────────────────────────

// Copies the constants of all tiles.
__device__ __forceinline__ void fetch_constants(u32 shared, const T* b, const Work& work)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    PipelineState<STAGES> pipe;
    if constexpr (!CONSTANT) grid_dependency_sync();
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const int n0 = Corner(tile, work).n, rows = min(BN, work.rows_b - n0);
        for (int step = 0; step < work.steps; ++step) {
            const u32 full = barriers.full(pipe.stage);
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, rows * 128);
            bulk_copy(shared + pipe.stage * BYTES_STAGE + BYTES_A, b + ((long long)step * work.rows_b + n0) * BK,
                      rows * 128, full);
            pipe.next();
        }
    }
}

// Copies the rows of all tiles.
__device__ __forceinline__ void fetch_rows(u32 shared, const TensorMap* a, const Work& work)
{
    const Pipeline<STAGES> barriers(shared + BARRIERS);
    PipelineState<STAGES> pipe;
    grid_dependency_sync();
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const int m0 = Corner(tile, work).m, n = m0 / work.pixels, pixel = m0 - n * work.pixels;
        const int row = pixel / work.columns;
        const int y = row * work.stride_h, x = (pixel - row * work.columns) * work.stride_w;
        for (int step = 0; step < work.steps; ++step) {
            const u32 full = barriers.full(pipe.stage);
            mbarrier_wait(barriers.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, BYTES_A);
            const u32 to = shared + pipe.stage * BYTES_STAGE;
            if constexpr (APART) tma_load_im2col(to, a, full, step * BK, x, y, n, 0, 0);
            else tma_load_2d(to, a, full, step * BK, m0);
            pipe.next();
        }
    }
}

// Loads the operands of the epilogue, and stores the results.
__device__ __forceinline__ void keep_results(u32 shared, const TensorMap* c, const TensorMap* halves, const TensorMap* z,
                                             const Work& work)
{
    const auto prepare = [&](Strip strip) {
        if (strip.tile() >= work.tiles) return;
        const Corner corner(strip.tile(), work);
        for (int group = 0; group < GROUPS; ++group) {
            const u32 ready = shared + strip.ready(group);
            if (strip.has_operand()) {
                mbarrier_expect_tx(ready, STRIP);
                tma_load_2d(shared + strip.part(group), z, ready, corner.n + strip.column(),
                            (corner.m + group * 64) % (PERIOD ? PERIOD : 1 << 30));
            } else {
                mbarrier_arrive(ready);
            }
        }
    };
    grid_dependency_sync();
    for (int i = 0; i < PLACES - 1; ++i) prepare({i});
    for (Strip strip = {0}; strip.tile() < work.tiles; ++strip.count) {
        prepare({strip.count + PLACES - 1});
        const Corner corner(strip.tile(), work);
        for (int group = 0; group < GROUPS; ++group) {
            mbarrier_wait(shared + strip.done(group), strip.parity());
            const int row = corner.m + group * 64, column = corner.n + strip.column();
            if (strip.in_halves()) tma_store_4d(halves, shared + strip.part(group), 0, row, column / 32, 0);
            else tma_store_2d(c, shared + strip.part(group), column, row);
        }
        tma_store_wait();
    }
}

// ── the end of a tile ───────────────────────────────────────────────────────────────────────────

struct Columns {  // operands that are the same in all rows
    const float* scales;
    const Z *bias, *z0, *z1;

    __device__ __forceinline__ Operands<2> at(int column) const
    {
        return {operand<2, BIAS ? 2 : 0>(bias, 0, 0, column, 2), operand<2, Z0 == 2 ? 2 : 0>(z0, 0, 0, column, 2),
                operand<2, Z1 == 2 ? 2 : 0>(z1, 0, 0, column, 2)};
    }
};

// A thread has two adjacent results of every eight columns, in two rows. Odd rows take the eights of a strip in another order,
// so that no bank of shared memory has two words of a half warp.
__device__ __forceinline__ int swizzled() { return threadIdx.x / 4 % 2 * 2; }

// What a thread needs of the columns of a strip.
struct OfStrip {
    float2 scale[4];
    Operands<2> with[4];

    __device__ __forceinline__ OfStrip(const Columns& columns, int column0, int n)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = min(column0 + (i ^ swizzled()) * 8 + (int)threadIdx.x % 4 * 2, n - 2);
            scale[i] = *(const float2*)(columns.scales + column);
            with[i] = columns.at(column);
        }
    }
};

// Finishes strip `piece` of the results of a group.
__device__ __forceinline__ void finish_strip(const float (&totals)[TN][4], int piece, OfStrip& of, unsigned char* memory,
                                             u32 shared, Strip strip)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128, row = lane / 4;
    mbarrier_wait(shared + strip.ready(group), strip.parity());
    unsigned char* const part = memory + strip.part(group) + warp * 2048 + row * 128;
    const int place = ((lane % 4 / 2 ^ row) * 16 + lane % 2 * 8) ^ swizzled() * 32;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            auto& at = *(Neighbours<float, 2>*)(part + half * 1024 + (place ^ i * 32));
            float pair[2];
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float straight = totals[piece * 4 + i][half * 2 + q], across = totals[piece * 4 + (i ^ 2)][half * 2 + q];
                pair[q] = (swizzled() ? across : straight) * (q ? of.scale[i].y : of.scale[i].x);
            }
            if constexpr (Z0 == 1) of.with[i].first = at;
            if constexpr (Z1 == 1) of.with[i].second = at;
            at = with_epilogue(pair, of.with[i]);
        }
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared + strip.done(group));
}

// Finishes all strips of the results of a group, once a thread has what it needs of their columns.
__device__ __forceinline__ void finish_strips(const float (&totals)[TN][4], unsigned char* memory, u32 shared, Strip& strip,
                                              const Columns& columns, int n0, int n)
{
    static_assert(TN <= 16, "operands of so many strips");
    OfStrip first(columns, n0, n), second(columns, n0 + 32, n), third(columns, n0 + 64, n), fourth(columns, n0 + 96, n);
    OfStrip* const of[4] = {&first, &second, &third, &fourth};
#pragma unroll
    for (int piece = 0; piece < TN / 4; ++piece, ++strip.count) finish_strip(totals, piece, *of[piece], memory, shared, strip);
}

// Finishes two strips, which are a block of columns, in halves, and with PLAIN those in front as they are; row `m0` is the first
// one of the group.
__device__ __forceinline__ void finish_block(float (&totals)[TN][4], int first, unsigned char* memory, u32 shared, Strip& strip,
                                             const Columns& columns, const RowsInHalves& stored, int m0, int n0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
    const auto wait = [&](int further) {
        const Strip next = {strip.count + further};
        mbarrier_wait(shared + next.ready(group), next.parity());
    };
    const auto part = [&](int further) { return memory + Strip{strip.count + further}.part(group); };
    const auto pass_two = [&] {
        fence_proxy_async();
        __syncwarp();
        for (int next = 0; next < 2; ++next, ++strip.count)
            if (lane == 0) mbarrier_arrive(shared + strip.done(group));
    };
    if constexpr (PLAIN || ALONG) wait(0), wait(1);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int column = min(n0 + i * 8 + lane % 4 * 2, stored.terms - 2);
        const float2 scale = *(const float2*)(columns.scales + column);
        Operands<2> with = columns.at(column);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* of = totals[first + i] + half * 2;
            const int row = warp * 16 + half * 8 + lane / 4;
            auto& at = *(Neighbours<float, 2>*)(part(i / 4) + swizzled(row, i % 4 * 2 + lane % 4 / 2) + lane % 2 * 8);
            if constexpr (Z0 == 1) with.first = at;
            if constexpr (Z1 == 1) with.second = at;
            const float pair[2] = {of[0] * scale.x, of[1] * scale.y};
            const Neighbours<float, 2> found = with_epilogue(pair, with);
            of[0] = found.at[0], of[1] = found.at[1];
            if constexpr (PLAIN) at = found;
        }
    }
    if constexpr (PLAIN) pass_two();
    if constexpr (PLAIN || !ALONG) wait(0), wait(1);
    else __syncwarp();  // all have read what halves replace
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + half * 8 + lane / 4;
        const RowScale by(__float_as_uint(greatest_of_row<8>(totals, first, half)));
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            store_sixteen({part(i / 4), 64, 32}, totals[first + i] + half * 2, totals[first + i + 1] + half * 2, by, row,
                          i % 4 * 8, 64);
        if (lane % 4 == 0 && m0 + row < stored.rows && n0 < stored.terms) stored.store_scale(m0 + row, n0 / BLOCK_TERMS, by.inverse);
    }
    pass_two();
}

// ── the kernel ──────────────────────────────────────────────────────────────────────────────────

// What all threads of a block do.
__device__ __forceinline__ void run(const TensorMap* a, const T* b, const float* scales, const TensorMap* c,
                                    const TensorMap* map, const TensorMap* z, unsigned char* halves, const T* bias,
                                    const T* z0, const T* z1, const Work& work, const ImageFactors& factors)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const u32 shared = shared_address(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLACES; ++i)
            for (int group = 0; group < GROUPS; ++group) {
                mbarrier_init(shared + Strip{i}.ready(group), 1);
                mbarrier_init(shared + Strip{i}.done(group), 4);
            }
        Pipeline<STAGES>(shared + BARRIERS).begin(2, GROUPS * 4);
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<LOADER_REGISTERS>();
        if (threadIdx.x == CONSUMERS) fetch_constants(shared, b, work);
        if (threadIdx.x == CONSUMERS + 32) fetch_rows(shared, a, work);
        if (threadIdx.x == CONSUMERS + 64) keep_results(shared, c, map, z, work);
    } else {
        setmaxnreg_inc<REGISTERS>();
        Steps steps(shared, threadIdx.x / 32 * 16);
        grid_dependency_sync();
        const Columns columns = {scales, bias, z0, z1};
        Strip strip = {0};
        while (strip.tile() < work.tiles) {
            const Corner corner(strip.tile(), work);
            float totals[TN][4] = {};
            factors.scale(steps, corner.m + (int)threadIdx.x / 32 * 16, work.m, 0);
            steps.add_all(totals, work.steps);
            if constexpr (IN_HALVES) {
                const int m0 = corner.m + (int)threadIdx.x / 128 * 64;
#pragma unroll
                for (int first = 0; first < TN; first += 8)
                    finish_block(totals, first, memory, shared, strip, columns, {halves, work.m, work.n}, m0, corner.n + first * 8);
            } else {
                finish_strips(totals, memory, shared, strip, columns, corner.n, work.n);
            }
        }
    }
}

#if FACTORS
extern "C" __global__ void __launch_bounds__(THREADS, 1)
split_linear_scaled(const __grid_constant__ TensorMap a, const T* b, const float* scales, const __grid_constant__ TensorMap c,
                    const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap z, unsigned char* halves,
                    const T* bias, const T* z0, const T* z1, Work work, const float* factors, int terms, int pixels)
{
    run(&a, b, scales, &c, &map, &z, halves, bias, z0, z1, work, {factors, terms, pixels});
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 1)
split_linear(const __grid_constant__ TensorMap a, const T* b, const float* scales, const __grid_constant__ TensorMap c,
             const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap z, unsigned char* halves, const T* bias,
             const T* z0, const T* z1, Work work)
{
    run(&a, b, scales, &c, &map, &z, halves, bias, z0, z1, work, ImageFactors());
}
#endif
