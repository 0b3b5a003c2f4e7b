// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) of 16-bit floats on Hopper, as GEMM or implicit
// GEMM: warp-specialized, with two producer threads that load tiles by TMA and GROUPS consumer warpgroups that
// multiply (wgmma), and persistent: a CTA processes tile after tile and prefetches the next while it stores.
//
// Rows of `a` are rows of a matrix or pixels of an image, channels last; b is [n][tap][channel]. The
// sum runs over chunks of CHUNK channels and, within each, over the taps of a window. Where possible one tile
// of `a` in shared memory serves all taps of a window: they are the same pixels at an offset of a few rows,
// and a wgmma descriptor can start at any row. The layouts of a tile:
//
// MATRIX   one row for each row of c; no windows.
// RUN      consecutive pixels of the padded image, as im2col loads them. Rows of c range over the padded
//          image, so a few of them are discarded.
// SQUARES  blocks of 8 x 8 pixels with the halo of their windows: 64 rows of c each; with POOL the maximum
//          of every 2 x 2 of them is stored.
// TAPWISE  the pixels of one tap: for strides, or where RUN would discard too many rows.
//
// A tile of b is one tap of CHUNK channels. Rows have CHUNK elements and are stored in swizzled order.
//
// Few tiles do not fill the GPU: then SPLIT blocks of a cluster share the chunks of one tile, and add up their sums from
// each other's shared memory, in a fixed order.
//
// Compile-time: LAYOUT; GROUPS; BLOCKS, of 64 rows of a warpgroup; BN; CHUNK; STAGES_A STAGES_B, tiles in
// shared memory; KEPT, whether all of `b` is loaded once and kept; RESIDENT, blocks per multiprocessor;
// POOL; SPLIT; VECTOR_C, BIAS, Z0 and Z1 as in multistage.cu; and the wgmma instruction.

#include "ptx/pdl.cuh"
#include "gemm/epilogue.cuh"
#include "elementwise/greater.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"
#include "ptx/cluster.cuh"
#include "elementwise/divide.cuh"
#include "gemm/add_blocks.cuh"

enum { MATRIX, RUN, SQUARES, TAPWISE };

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 64;
constexpr int BM = GROUPS * BLOCKS * 64, TN = BN / 8;
constexpr int ROW = CHUNK * 2;  // bytes
constexpr int BYTES_B = BN * ROW;
// Staging of a warp's results for rows that are not whole words: 16 rows of 32 columns.
constexpr bool STRIPS = VECTOR_C == 1 && !POOL;
constexpr int PITCH = 40;

struct Windows {
    int taps, columns;                // of a window; columns in a row of it
    int tap_h, tap_w;                 // distances of taps: rows of the tile of `a`, or pixels (TAPWISE)
    int stride_h, stride_w;           // of windows
    int first_h, first_w;             // where the first window begins
    int height, width;                // of the rows of c of an image: pixels, or squares
    int out_height, out_width;        // of the result, before POOL
    int next;                         // from one square to the one below its rows: 8 rows of `a`
    int loaded;                       // bytes of a tile of `a`
    Divisor plane, row;               // height * width, and width
};

struct Pixel {
    int n, y, x;
};

__device__ __forceinline__ Pixel pixel_of(int m, const Windows& w)
{
    const int n = divide(m, w.plane), rest = m - n * w.height * w.width;
    const int y = divide(rest, w.row);
    return {n, y, rest - y * w.width};
}

// ── what two threads fetch ──────────────────────────────────────────────────────────────────────

// The schedule of a CTA: tiles, those of the same rows in sequence, and the chunks of each.
struct Work {
    int tiles, tiles_n, begin, end, taps;
};

// The barriers: full and empty for each stage of `a`, then for each of `b`.
struct Barriers {
    u32 full_a, empty_a, full_b, empty_b;
    __device__ __forceinline__ explicit Barriers(u32 at)
        : full_a(at), empty_a(at + STAGES_A * 8), full_b(at + STAGES_A * 16),
          empty_b(at + (2 * STAGES_A + STAGES_B) * 8) {}
};

__device__ __forceinline__ void fetch_a(const TensorMap* map, u32 tiles, int stage_bytes,
                                        const Barriers& barriers, const Work& work, const Windows& w)
{
    PipelineState<STAGES_A> turn;
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const int m0 = tile / work.tiles_n * BM;
        const Pixel first = LAYOUT == MATRIX ? Pixel{} : pixel_of(LAYOUT == SQUARES ? m0 / 64 : m0, w);
        for (int chunk = work.begin; chunk < work.end; ++chunk)
            for (int tap = 0, row = 0, column = 0; tap < (LAYOUT == TAPWISE ? work.taps : 1); ++tap) {
                const u32 full = barriers.full_a + turn.stage * 8, to = tiles + turn.stage * stage_bytes;
                mbarrier_wait(barriers.empty_a + turn.stage * 8, turn.parity ^ 1);
                mbarrier_expect_tx(full, w.loaded);
                if constexpr (LAYOUT == MATRIX) {
                    tma_load_2d(to, map, full, chunk * CHUNK, m0);
                } else if constexpr (LAYOUT == SQUARES) {
#pragma unroll
                    for (int i = 0; i < GROUPS * BLOCKS; ++i) {
                        const Pixel at = pixel_of(m0 / 64 + i, w);
                        tma_load_4d(to + i * (stage_bytes / (GROUPS * BLOCKS)), map, full, chunk * CHUNK,
                                at.x * 8 + w.first_w, at.y * 8 + w.first_h, at.n);
                    }
                } else {
                    tma_load_im2col(to, map, full, chunk * CHUNK, first.x * w.stride_w + w.first_w,
                                 first.y * w.stride_h + w.first_h, first.n, column * w.tap_w,
                                 row * w.tap_h);
                }
                if (++column == w.columns) column = 0, ++row;
                turn.next();
            }
    }
}

__device__ __forceinline__ void fetch_b(const TensorMap* map, u32 tiles, const Barriers& barriers,
                                        const Work& work)
{
    PipelineState<STAGES_B> turn;
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const int n0 = tile % work.tiles_n * BN;
        for (int chunk = work.begin; chunk < work.end; ++chunk)
            for (int tap = 0; tap < work.taps; ++tap) {
                const u32 full = barriers.full_b + turn.stage * 8;
                mbarrier_wait(barriers.empty_b + turn.stage * 8, turn.parity ^ 1);
                mbarrier_expect_tx(full, BYTES_B);
                tma_load_3d(tiles + turn.stage * BYTES_B, map, full, chunk * CHUNK, tap, n0);
                turn.next();
            }
        if constexpr (KEPT) return;
    }
}

// ── the end of a tile ───────────────────────────────────────────────────────────────────────────

// Four adjacent threads have two columns each of four groups of eight; afterwards each has one whole group.
__device__ __forceinline__ void exchange(float (&values)[8], const float (*sums)[4], int half, int lane)
{
    float pairs[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j][0] = sums[j][2 * half], pairs[j][1] = sums[j][2 * half + 1];
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const int low = bit == 1 ? 2 * t : t, high = low + bit;
            const bool upper = lane & bit;
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float sent = upper ? pairs[low][q] : pairs[high][q];
                const float found = __shfl_xor_sync(~0u, sent, bit);
                if (upper) pairs[low][q] = found;
                else pairs[high][q] = found;
            }
        }
#pragma unroll
    for (int j = 0; j < 4; ++j) values[2 * j] = pairs[j][0], values[2 * j + 1] = pairs[j][1];
}

// The position of row m of c in the result, in pixels; -1 if it is discarded.
__device__ __forceinline__ int place_of(int m, int count, const Windows& w)
{
    if constexpr (LAYOUT == MATRIX) return m < count ? m : -1;
    Pixel at = pixel_of(LAYOUT == SQUARES ? m / 64 : m, w);
    if constexpr (LAYOUT == SQUARES) at.y = at.y * 8 + m % 64 / 8, at.x = at.x * 8 + m % 8;
    if (m >= count || at.y >= w.out_height || at.x >= w.out_width) return -1;
    if constexpr (POOL) return (at.n * (w.out_height / 2) + at.y / 2) * (w.out_width / 2) + at.x / 2;
    return (at.n * w.out_height + at.y) * w.out_width + at.x;
}

// Stores the 16 rows of a warp that begin at row m.
__device__ __forceinline__ void store(const float (&sums)[TN][4], R* c, const T* bias, const T* z0,
                                      const T* z1, int m, int count, int n0, int n, int ldc,
                                      const Windows& w)
{
    const int lane = threadIdx.x % 32;
    const int places[2] = {place_of(m + lane / 4, count, w), place_of(m + lane / 4 + 8, count, w)};
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
        const int column = n0 + j * 8 + lane % 4 * 8, room = n - column;
        Operands<8> operands[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (places[half] >= 0 && room > 0)
                operands[half] = operands_at<8>((long long)places[half] * ldc + column, places[half], column, room,
                                             bias, z0, z1);
        Words results[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float values[8];
            exchange(values, sums + j, half, lane);
            results[half] = with_epilogue(values, operands[half]);
        }
        if constexpr (POOL) {
            Words best = greater(results[0], results[1]), other;
#pragma unroll
            for (int q = 0; q < 4; ++q)
                ((u32*)&other)[q] = __shfl_xor_sync(~0u, ((u32*)&best)[q], 4);
            if (places[0] >= 0 && room > 0 && lane / 4 % 2 == 0)
                keep(c + (long long)places[0] * ldc + column, greater(best, other), room);
        } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (places[half] >= 0 && room > 0)
                    keep(c + (long long)places[half] * ldc + column, results[half], room);
        }
    }
}

// The same where rows of c are not whole words: staged in `strip`, so that adjacent threads store adjacent
// columns.
__device__ __forceinline__ void store_rows(const float (&sums)[TN][4], float* strip, R* c, const T* bias,
                                           const T* z0, const T* z1, int m, int count, int n0, int n,
                                           int ldc, const Windows& w)
{
    const int lane = threadIdx.x % 32, own = place_of(m + lane % 16, count, w);
    float* const mine = strip + lane / 4 * PITCH + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *(float2*)(mine + half * 8 * PITCH + i * 8) =
                    make_float2(sums[j + i][half * 2], sums[j + i][half * 2 + 1]);
        __syncwarp();
        const int column = n0 + j * 8 + lane;
#pragma unroll 4
        for (int row = 0; row < 16; ++row) {
            const int place = __shfl_sync(~0u, own, row);
            if (place < 0 || column >= n) continue;
            const long long at = (long long)place * ldc + column;
            const float value[1] = {strip[row * PITCH + lane]};
            epilogue_all(c, value, operands_at<1>(at, place, column, 1, bias, z0, z1), at, 1);
        }
    }
}

// The same for a tile whose sums are those of all blocks of a cluster: each of them stores a part.
__device__ __forceinline__ void store_split(const float (&sums)[BLOCKS][TN][4], unsigned char* shared, R* c,
                                            const T* bias, const T* z0, const T* z1, int m0, int count, int n0, int n,
                                            int ldc, const Windows& w)
{
    constexpr int WIDTH = BN + 8, WORDS = BN / 8, ITEMS = (POOL ? BM / 4 : BM) * WORDS;
    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    named_barrier_sync<1, CONSUMERS>();  // no warp multiplies any more what was here
    float* const mine = (float*)shared + (group * BLOCKS * 64 + warp * 16 + lane / 4) * WIDTH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *(float2*)(mine + (i * 64 + half * 8) * WIDTH + j * 8) =
                    make_float2(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
    cluster_sync();
    const int split = blockIdx.y, end = ITEMS * (split + 1) / SPLIT;
    for (int item = ITEMS * split / SPLIT + threadIdx.x; item < end; item += CONSUMERS) {
        const int word = item % WORDS * 8, column = n0 + word, room = n - column;
        const auto result = [&](int row, int place) {
            const Operands<8> with = operands_at<8>((long long)place * ldc + column, place, column, room, bias, z0, z1);
            float values[8];
            add_blocks(values, shared_address(shared) + (row * WIDTH + word) * 4, SPLIT);
            return with_epilogue(values, with);
        };
        int row = item / WORDS;
        if constexpr (POOL) row = row / 16 * 64 + row % 16 / 4 * 16 + row % 4 * 2;  // the first of 2 x 2 pixels
        const int place = place_of(m0 + row, count, w);
        if (place < 0 || room <= 0) continue;
        Words best = result(row, place);
        if constexpr (POOL) {
            best = greater(best, result(row + 1, place));
            best = greater(best, greater(result(row + 8, place), result(row + 9, place)));
        }
        keep(c + (long long)place * ldc + column, best, room);
    }
    cluster_sync();  // other blocks may still read this memory
}

// ── the kernel ──────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
mma_bulk(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, R* c,
         const T* bias, const T* z0, const T* z1, int m, int n, int ldc, int tiles, int tiles_n,
         int chunks, int stage_a, const __grid_constant__ Windows w)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 tiles_a = shared_address(shared), tiles_b = tiles_a + STAGES_A * stage_a;
    const Barriers barriers(tiles_b + STAGES_B * BYTES_B);
    float* const strips = (float*)(shared + STAGES_A * stage_a + STAGES_B * BYTES_B)
                          + (STAGES_A + STAGES_B) * 4;
    const int split = SPLIT > 1 ? blockIdx.y : 0;
    const Work work = {tiles, tiles_n, chunks * split / SPLIT, chunks * (split + 1) / SPLIT, w.taps};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES_A; ++i) {
            mbarrier_init(barriers.full_a + i * 8, 1);
            mbarrier_init(barriers.empty_a + i * 8, CONSUMERS / 32);
        }
        for (int i = 0; i < STAGES_B; ++i) {
            mbarrier_init(barriers.full_b + i * 8, 1);
            mbarrier_init(barriers.empty_b + i * 8, CONSUMERS / 32);
        }
        fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x == CONSUMERS) fetch_b(&b, tiles_b, barriers, work);  // constants: without waiting
    grid_dependency_sync();
    if (threadIdx.x == CONSUMERS + 32) fetch_a(&a, tiles_a, stage_a, barriers, work, w);
    if (threadIdx.x >= CONSUMERS) return;

    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const u32 block = LAYOUT == SQUARES ? stage_a / (GROUPS * BLOCKS) : 64 * ROW;
    const uint64 form_a = smem_descriptor_as<CHUNK>(w.next), form_b = smem_descriptor_as<CHUNK>(8);
    const int taps_of_a = LAYOUT == TAPWISE ? 1 : w.taps, steps = (work.end - work.begin) * w.taps;
    PipelineState<STAGES_A> of_a;
    PipelineState<STAGES_B> of_b;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sums[BLOCKS][TN][4] = {};
        int left_a = -1, left_b = -1;  // stages that the products under way still read
        const auto leave = [&] {
            if (lane == 0 && !KEPT && left_b >= 0) mbarrier_arrive(barriers.empty_b + left_b * 8);
            if (lane == 0 && left_a >= 0) mbarrier_arrive(barriers.empty_a + left_a * 8);
            left_a = left_b = -1;
        };
#pragma unroll 1
        for (int step = 0, tap = 0, row = 0, column = 0; step < steps; ++step) {
            mbarrier_wait(barriers.full_a + of_a.stage * 8, of_a.parity);
            mbarrier_wait(barriers.full_b + of_b.stage * 8, of_b.parity);
            const u32 from_a = tiles_a + of_a.stage * stage_a + group * BLOCKS * block
                               + (LAYOUT == TAPWISE ? 0 : row * w.tap_h + column * w.tap_w) * ROW;
            const u32 from_b = tiles_b + of_b.stage * BYTES_B;
            settle(sums);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < CHUNK / 16; ++k)
#pragma unroll
                for (int i = 0; i < BLOCKS; ++i)
                    wgmma(sums[i], form_a | (from_a + i * block + k * 32) >> 4,
                          form_b | (from_b + k * 32) >> 4);
            wgmma_commit();
            wgmma_wait<1>();
            leave();
            left_b = of_b.stage;
            of_b.next();
            if (++column == w.columns) column = 0, ++row;
            if (++tap == taps_of_a) {
                tap = row = column = 0, left_a = of_a.stage;
                of_a.next();
                if constexpr (STAGES_A == 1) {  // the next one arrives when this one is left
                    wgmma_wait<0>();
                    leave();
                }
            }
        }
        wgmma_wait<0>();
        settle(sums);
        leave();
        if constexpr (KEPT) of_b = {};
        const int n0 = tile % tiles_n * BN;
        if constexpr (SPLIT > 1) {
            store_split(sums, shared, c, bias, z0, z1, tile / tiles_n * BM, m, n0, n, ldc, w);
            return;
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const int m0 = tile / tiles_n * BM + (group * BLOCKS + i) * 64 + warp * 16;
            if constexpr (STRIPS)
                store_rows(sums[i], strips + (group * 4 + warp) * 16 * PITCH, c, bias, z0, z1, m0, m, n0, n,
                           ldc, w);
            else
                store(sums[i], c, bias, z0, z1, m0, m, n0, n, ldc, w);
        }
    }
}
