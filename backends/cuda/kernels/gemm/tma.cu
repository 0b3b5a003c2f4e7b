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
// Windows of a volume (VOLUME) have the channels of all of their frames, one frame after another; frames are images.
//
// The filters of a group of a convolution read channels of their own, and its tiles begin at its first filter.
//
// A tile of b is one tap of CHUNK channels. Rows have CHUNK elements and are stored in swizzled order.
//
// Few tiles do not fill the GPU: then SPLIT blocks of a cluster share the steps of one tile, and send their sums to each
// other's shared memory; see inbox.cuh.
//
// Compile-time: LAYOUT; GROUPS, of warps; BLOCKS, of 64 rows of a warpgroup; BN; CHUNK; STAGES_A STAGES_B, tiles in
// shared memory; KEPT, whether a CTA has the same tile of `b` for all of its tiles, and keeps it; GROUPED; RESIDENT, blocks per multiprocessor;
// POOL; SPLIT; VECTOR_C, BIAS, Z0 and Z1 as in multistage.cu; and the wgmma instruction.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "elementwise/greater.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"
#include "ptx/cluster.cuh"
#include "elementwise/divide.cuh"
#include "gemm/inbox.cuh"
#include "gemm/store_pixels.cuh"

enum { MATRIX, RUN, SQUARES, TAPWISE };

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 64;
constexpr int BM = GROUPS * BLOCKS * 64, TN = BN / 8;
constexpr int ROW = CHUNK * 2;  // bytes
constexpr int BYTES_B = BN * ROW;
// Tiles of `b` that are requested before those of `a`, which others would delay: BERT-base at batch 1 takes 2 to 3 % less,
// while ViT-B, whose tiles of `a` are taller, would take 1 % more.
constexpr int EARLY_B = LAYOUT == MATRIX && BM == 64 ? 1 : STAGES_B;
// Staging of a warp's results for rows that are not whole words: 16 rows of 32 columns.
constexpr bool STRIPS = VECTOR_C == 1 && !POOL && SPLIT == 1;
constexpr int PITCH = 40;
// Operands of the epilogue are read before the products, if a thread has few results.
constexpr bool EARLY = BLOCKS * TN <= 8 && !STRIPS;

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
    int of_frame, depth;              // of a volume: channels of a frame, and frames of a sample
    int stride_d, tap_d, first_d;     // and which frame follows, as along the other axes
    int frames;                       // of a sample's result
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

// The image that a tap of window n reads: of a volume a frame, or none, which reads as zeros.
__device__ __forceinline__ int image_of(int n, int tap, const Windows& w)
{
    if constexpr (!VOLUME) return n;
    const int sample = n / w.frames, frame = (n - sample * w.frames) * w.stride_d + tap * w.tap_d + w.first_d;
    return (u32)frame < (u32)w.depth ? sample * w.depth + frame : -1;
}

// ── what two threads fetch ──────────────────────────────────────────────────────────────────────

// The schedule of a CTA: tiles, those of the same rows in sequence, and the steps of each, `taps` for each chunk.
struct Work {
    int tiles, tiles_n, begin, end, taps;
    int of_group, filters, channels;  // tiles along n, filters, and channels of a group
};

// Where a tile is in the result, and the first channel that it reads.
struct Tile {
    int m0, n0, n_end, channel;

    __device__ __forceinline__ Tile(int tile, const Work& work)
    {
        const int number = in_order(tile, work.tiles), row = number / work.tiles_n, column = number - row * work.tiles_n;
        const int group = GROUPED ? column / work.of_group : 0;
        m0 = row * BM, n0 = group * work.filters + (column - group * work.of_group) * BN;
        n_end = (group + 1) * work.filters, channel = group * work.channels;
    }
};

// A chunk, and the tap of a window with its row and column.
struct Step {
    int chunk, tap, row, column;

    __device__ __forceinline__ Step(int number, const Windows& w)
        : chunk(number / w.taps), tap(number - chunk * w.taps), row(tap / w.columns), column(tap - row * w.columns)
    {
    }

    __device__ __forceinline__ void next(const Windows& w)
    {
        if (++column == w.columns) column = 0, ++row;
        if (++tap == w.taps) tap = row = column = 0, ++chunk;
    }
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
    PipelineState<STAGES_A> pipe;
    bool waited = false;  // for the preceding kernel, which is done as late as possible
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const Tile at(tile, work);
        const Pixel first = LAYOUT == MATRIX ? Pixel{} : pixel_of(LAYOUT == SQUARES ? at.m0 / 64 : at.m0, w);
        Step step(work.begin, w);
        for (int number = work.begin; number < work.end; step.next(w)) {
            const u32 full = barriers.full_a + pipe.stage * 8, to = tiles + pipe.stage * stage_bytes;
            const int channel = at.channel + step.chunk * CHUNK;
            mbarrier_wait(barriers.empty_a + pipe.stage * 8, pipe.parity ^ 1);
            mbarrier_expect_tx(full, w.loaded);
            if (!waited) grid_dependency_sync(), waited = true;
            if constexpr (LAYOUT == MATRIX) {
                tma_load_2d(to, map, full, channel, at.m0);
            } else if constexpr (LAYOUT == SQUARES) {
#pragma unroll
                for (int i = 0; i < GROUPS * BLOCKS; ++i) {
                    const Pixel square = pixel_of(at.m0 / 64 + i, w);
                    const int tap = VOLUME ? channel / w.of_frame : 0;
                    tma_load_4d(to + i * (stage_bytes / (GROUPS * BLOCKS)), map, full, channel - tap * w.of_frame,
                                square.x * 8 + w.first_w, square.y * 8 + w.first_h, image_of(square.n, tap, w));
                }
            } else {
                tma_load_im2col(to, map, full, channel, first.x * w.stride_w + w.first_w,
                                first.y * w.stride_h + w.first_h, first.n, LAYOUT == RUN ? 0 : step.column * w.tap_w,
                                LAYOUT == RUN ? 0 : step.row * w.tap_h);
            }
            pipe.next();
            if constexpr (LAYOUT == TAPWISE || LAYOUT == MATRIX) {
                ++number;
            } else {  // the remaining taps of the chunk read it, too
                number += work.taps - step.tap;
                step.tap = work.taps - 1, step.column = w.columns - 1;
            }
        }
    }
}

__device__ __forceinline__ void fetch_b(const TensorMap* map, u32 tiles, const Barriers& barriers,
                                        const Work& work)
{
    PipelineState<STAGES_B> pipe;
    for (int tile = blockIdx.x; tile < work.tiles; tile += gridDim.x) {
        const int n0 = Tile(tile, work).n0;
        int chunk = work.begin / work.taps, tap = work.begin - chunk * work.taps;
        for (int number = work.begin; number < work.end; ++number) {
            if (number == work.begin + EARLY_B && tile == (int)blockIdx.x) grid_dependency_sync();
            const u32 full = barriers.full_b + pipe.stage * 8;
            mbarrier_wait(barriers.empty_b + pipe.stage * 8, pipe.parity ^ 1);
            mbarrier_expect_tx(full, BYTES_B);
            tma_load_3d(tiles + pipe.stage * BYTES_B, map, full, chunk * CHUNK, tap, n0);
            if (++tap == work.taps) tap = 0, ++chunk;
            pipe.next();
        }
        if constexpr (KEPT) return;
    }
}

// ── the end of a tile ───────────────────────────────────────────────────────────────────────────

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

// The share of a block in a tile whose sums are those of all blocks of a cluster.
struct Share {
    static constexpr int WORDS = BN / 8, TOGETHER = POOL ? 4 : 1, MOST = 4;  // results of a thread at once
    Inbox<BM / TOGETHER, WORDS * TOGETHER, true> inbox;
    int places[MOST], columns[MOST];
    Operands<8> operands[MOST];

    __device__ __forceinline__ explicit Share(unsigned char* memory) : inbox(memory, blockIdx.y, SPLIT) {}

    // The row of the inbox of a row, and its place among those of 2 x 2 pixels, whose items are adjacent.
    static __device__ __forceinline__ int row_of(int row) { return POOL ? row / 16 * 4 + row % 8 / 2 : row; }
    static __device__ __forceinline__ int among(int row) { return POOL ? row / 8 % 2 * 2 + row % 2 : 0; }

    // Reads the operands of some results of this thread, from its item `first` on.
    __device__ __forceinline__ void read(int first, int m0, int count, int n0, int n, int ldc, const T* bias,
                                         const T* z0, const T* z1, const Windows& w)
    {
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int item = first + i * CONSUMERS * TOGETHER, number = item / TOGETHER, at = number / WORDS;
            const int row = POOL ? at / 4 * 16 + at % 4 * 2 : at;
            columns[i] = n0 + number % WORDS * 8;
            places[i] = item < inbox.end() && columns[i] < n ? place_of(m0 + row, count, w) : -1;
            if (places[i] >= 0)
                operands[i] = operands_at<8>((long long)places[i] * ldc + columns[i], places[i], columns[i],
                                             n - columns[i], bias, z0, z1);
        }
    }

    __device__ __forceinline__ int first() const { return inbox.begin() + threadIdx.x * TOGETHER; }

    // Sends the sums of this block.
    __device__ __forceinline__ void send(const float (&sums)[BLOCKS][TN][4]) const
    {
        const int row = threadIdx.x / 128 * BLOCKS * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int upper = row + i * 64, lower = upper + 8;
                inbox.send_pairs(row_of(upper), row_of(lower), j * TOGETHER + among(upper), j * TOGETHER + among(lower),
                                 make_float2(sums[i][j][0], sums[i][j][1]), make_float2(sums[i][j][2], sums[i][j][3]));
            }
    }

    // Stores some results of this thread, whose operands have been read.
    __device__ __forceinline__ void store(int first, R* c, int n, int ldc) const
    {
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            if (places[i] < 0) continue;
            Words best;
#pragma unroll
            for (int part = 0; part < TOGETHER; ++part) {
                float values[8];
                inbox.add(values, first + i * CONSUMERS * TOGETHER + part);
                const Words found = with_epilogue(values, operands[i]);
                best = part ? greater(best, found) : found;
            }
            keep(c + (long long)places[i] * ldc + columns[i], best, n - columns[i]);
        }
    }
};

// ── the kernel ──────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
mma_bulk(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, R* c,
         const T* bias, const T* z0, const T* z1, int m, int ldc, int tiles, int tiles_n, int of_group, int filters,
         int channels, int chunks, int stage_a, const __grid_constant__ Windows w)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 tiles_a = shared_address(shared), tiles_b = tiles_a + STAGES_A * stage_a;
    const Barriers barriers(tiles_b + STAGES_B * BYTES_B);
    float* const strips = (float*)(shared + STAGES_A * stage_a + STAGES_B * BYTES_B)
                          + (STAGES_A + STAGES_B) * 4;
    const int split = SPLIT > 1 ? blockIdx.y : 0, steps = chunks * w.taps;
    const Work work = {tiles, tiles_n, steps * split / SPLIT, steps * (split + 1) / SPLIT, w.taps, of_group,
                       filters, channels};
    Share share((unsigned char*)strips);
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
    if constexpr (SPLIT > 1) share.inbox.open();
    if (threadIdx.x == CONSUMERS) fetch_b(&b, tiles_b, barriers, work);  // constants: without waiting
    if (threadIdx.x == CONSUMERS + 32) {
        prefetch_map(&a);
        fetch_a(&a, tiles_a, stage_a, barriers, work, w);
    }
    if (threadIdx.x >= CONSUMERS) return;
    grid_dependency_sync();

    const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const u32 block = LAYOUT == SQUARES ? stage_a / (GROUPS * BLOCKS) : 64 * ROW;
    const uint64 form_a = smem_descriptor_as<CHUNK>(w.next), form_b = smem_descriptor_as<CHUNK>(8);
    PipelineState<STAGES_A> of_a;
    PipelineState<STAGES_B> of_b;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Tile at(tile, work);
        const int m0 = at.m0, n0 = at.n0, n = at.n_end;
        const auto rows_of = [&](int i) {
            const int row = m0 + (group * BLOCKS + i) * 64 + warp * 16 + lane / 4;
            return Rows{place_of(row, m, w), place_of(row + 8, m, w)};
        };
        const int column = n0 + lane % 4 * 8;
        Operands<8> early[EARLY ? BLOCKS : 1][EARLY ? TN / 4 : 1][2];
        if constexpr (SPLIT > 1) {
            share.read(share.first(), m0, m, n0, n, ldc, bias, z0, z1, w);
        } else if constexpr (EARLY) {
#pragma unroll
            for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
                for (int j = 0; j < TN; j += 4)
                    rows_of(i).read(early[i][j / 4], column + j * 8, n, ldc, bias, z0, z1);
        }
        float sums[BLOCKS][TN][4] = {};
        int left_a = -1, left_b = -1;  // stages that the products under way still read
        const auto leave = [&] {
            if (lane == 0 && !KEPT && left_b >= 0) mbarrier_arrive(barriers.empty_b + left_b * 8);
            if (lane == 0 && left_a >= 0) mbarrier_arrive(barriers.empty_a + left_a * 8);
            left_a = left_b = -1;
        };
        Step step(work.begin, w);
#pragma unroll 1
        for (int number = work.begin; number < work.end; ++number) {
            mbarrier_wait(barriers.full_a + of_a.stage * 8, of_a.parity);
            mbarrier_wait(barriers.full_b + of_b.stage * 8, of_b.parity);
            const u32 from_a = tiles_a + of_a.stage * stage_a + group * BLOCKS * block
                               + (LAYOUT == TAPWISE ? 0 : step.row * w.tap_h + step.column * w.tap_w) * ROW;
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
            step.next(w);
            if (LAYOUT == TAPWISE || step.tap == 0) {
                left_a = of_a.stage;
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
        if constexpr (SPLIT > 1) {
            share.inbox.wait_open();
            share.send(sums);
            share.inbox.wait_received();
            for (int first = share.first(); first < share.inbox.end();) {
                share.store(first, c, n, ldc);
                first += Share::MOST * CONSUMERS * Share::TOGETHER;
                share.read(first, m0, m, n0, n, ldc, bias, z0, z1, w);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i) {
            const Rows rows = rows_of(i);
            if constexpr (STRIPS) {
                store_rows(sums[i], strips + (group * 4 + warp) * 16 * PITCH, c, bias, z0, z1,
                           m0 + (group * BLOCKS + i) * 64 + warp * 16, m, n0, n, ldc, w);
                continue;
            }
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                Operands<8> late[2];
                if constexpr (!EARLY) rows.read(late, column + j * 8, n, ldc, bias, z0, z1);
                rows.store(c, sums[i] + j, EARLY ? early[i][j / 4] : late, column + j * 8, n, ldc);
            }
        }
    }
}
