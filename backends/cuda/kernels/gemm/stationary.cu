// A convolution of 16-bit floats on Hopper whose weights stay in shared memory (weight-stationary), for few channels, where a
// tile has few products: a block loads the weights of BN filters once, and a tile of the image serves all taps of a window,
// whose products are one sequence without a barrier. Windows are one pixel apart. Rows of the grid have filters of their own.
//
// Warp-specialized and persistent: one thread loads weights, then tile after tile by TMA; the GROUPS consumer warpgroups
// have tiles of their own, and multiply in turns: all at once, they would also store at once, and nothing would be multiplied
// meanwhile. A tile is 8 x 8 BLOCKS pixels, high, with the halo of its windows: a wgmma descriptor begins at any pixel, and its
// groups of eight rows are rows of the tile. Channels are loaded in chunks of CHUNK; rows have as many elements and are stored
// in swizzled order. Weights are [filter][tap][channel].
//
// With FILTERS_DOWN, 64 filters are the left operand and the pixels of a tile the right one: tensor cores read a quarter less
// from shared memory. Of 16 filters, the even ones come first, so that a thread has two adjacent ones. All chunks are full.
//
// Compile-time: GROUPS; BLOCKS; BN, filters of a block; FILTERS_DOWN; CHUNK, CHUNKS; KH, KW, the window, and DH, DW, the
// distances of its taps; STAGES, tiles of a chunk for each warpgroup; RESIDENT, blocks per multiprocessor; POOL, VECTOR_C, BIAS,
// Z0 and Z1 as in tma.cu; and the wgmma instruction.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "elementwise/greater.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"
#include "elementwise/divide.cuh"
#include "gemm/store_pixels.cuh"

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 32, TAPS = KH * KW;
constexpr int PARTS = FILTERS_DOWN ? 1 : BLOCKS, TN = (FILTERS_DOWN ? BLOCKS * 64 : BN) / 8;  // of a group's sums
constexpr int ROW = CHUNK * 2, WIDTH = 8 + (KW - 1) * DW, HEIGHT = 8 * BLOCKS + (KH - 1) * DH;
constexpr int LOADED = WIDTH * HEIGHT * ROW, STAGE = (LOADED + 1023) / 1024 * 1024;
constexpr int OF_TAP = BN * ROW, WEIGHTS = TAPS * CHUNKS * OF_TAP;
constexpr bool IN_TURNS = CHUNKS == 1;  // chunks of a tile are loaded one after another
static_assert(!FILTERS_DOWN || BN == 64, "rows of a product");

struct Plane {
    int pad_h, pad_w, height, width;  // before the image; of the result, before POOL
    int of_image, of_row;             // tiles
    Divisor by_image, by_row;
};

// Where a tile is.
struct Tile {
    int n, y, x;

    __device__ __forceinline__ Tile(int number, const Plane& p)
    {
        n = divide(number, p.by_image);
        const int rest = number - n * p.of_image, down = divide(rest, p.by_row);
        y = down * 8 * BLOCKS, x = (rest - down * p.of_row) * 8;
    }
};

// Where a chunk of a tile is in shared memory: of the tile with this number among those of a warpgroup.
struct Stage {
    int place;
    u32 parity;

    __device__ __forceinline__ Stage(int group, int tile, int chunk)
    {
        const int number = tile * CHUNKS + chunk;
        place = group * STAGES + number % STAGES, parity = number / STAGES & 1;
    }
};

__device__ __forceinline__ void fetch(const TensorMap* image, const TensorMap* weights, u32 tiles, u32 kept,
                                      const Pipeline<GROUPS * STAGES>& pipeline, u32 loaded, int count, const Plane& p)
{
    mbarrier_expect_tx(loaded, WEIGHTS);
    for (int chunk = 0; chunk < CHUNKS; ++chunk)
        for (int tap = 0; tap < TAPS; ++tap)
            if constexpr (FILTERS_DOWN)
                tma_load_4d(kept + (chunk * TAPS + tap) * OF_TAP, weights, loaded, (tap * CHUNKS + chunk) * CHUNK, 0, 0,
                            blockIdx.y * (BN / 16));
            else
                tma_load_3d(kept + (chunk * TAPS + tap) * OF_TAP, weights, loaded, chunk * CHUNK, tap, blockIdx.y * BN);
    grid_dependency_sync();
    for (int number = blockIdx.x, mine = 0; number < count; number += gridDim.x, ++mine) {
        const Tile tile(in_order(number, count), p);
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const Stage to(mine % GROUPS, mine / GROUPS, chunk);
            mbarrier_wait(pipeline.empty(to.place), to.parity ^ 1);
            mbarrier_expect_tx(pipeline.full(to.place), LOADED);
            tma_load_4d(tiles + to.place * STAGE, image, pipeline.full(to.place), chunk * CHUNK, tile.x - p.pad_w,
                        tile.y - p.pad_h, tile.n);
        }
    }
}

// The products of a chunk, of a tile whose image is at `image`.
__device__ __forceinline__ void multiply(float (&sums)[PARTS][TN][4], u32 image, u32 weights)
{
    pin(image), pin(weights);  // or else a register would keep each of the operands below
    const uint64 from_image = smem_descriptor_as<CHUNK>(WIDTH) | image >> 4;
    const uint64 from_weights = smem_descriptor_as<CHUNK>(8) | weights >> 4;
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
        if (IN_TURNS && tap == TAPS * 3 / 4) wgmma_commit();  // the rest hides how long the next group takes to begin
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k)
#pragma unroll
            for (int i = 0; i < PARTS; ++i) {
                const int row = (tap / KW * DH + i * 8) * WIDTH + tap % KW * DW;
                const uint64 pixels = from_image + (row * ROW + k * 32 >> 4), filters = from_weights + (tap * OF_TAP + k * 32 >> 4);
                wgmma(sums[i], FILTERS_DOWN ? filters : pixels, FILTERS_DOWN ? pixels : filters);
            }
    }
    wgmma_commit();
}

// The position of a pixel in the result; -1 if it is outside.
__device__ __forceinline__ int place_of(int n, int y, int x, const Plane& p)
{
    if (y >= p.height || x >= p.width) return -1;
    if constexpr (POOL) return (n * (p.height / 2) + y / 2) * (p.width / 2) + x / 2;
    return (n * p.height + y) * p.width + x;
}

// Finishes the sums of a tile whose rows are pixels.
__device__ __forceinline__ void finish(const float (&sums)[PARTS][TN][4], R* c, const T* bias, const T* z0, const T* z1,
                                       const Tile& tile, int filters, int ldc, const Plane& p)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, column = blockIdx.y * BN + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const int y = tile.y + i * 8 + warp * 2, x = tile.x + lane / 4;
        const Rows rows = {place_of(tile.n, y, x, p), place_of(tile.n, y + 1, x, p)};
#pragma unroll
        for (int j = 0; j < TN; j += 4) {
            Operands<8> operands[2];
            rows.read(operands, column + j * 8, filters, ldc, bias, z0, z1);
            rows.store(c, sums[i] + j, operands, column + j * 8, filters, ldc);
        }
    }
}

// The same where rows are filters. A thread has two of them, and two neighbours of each row of pixels.
__device__ __forceinline__ void finish_across(const float (&sums)[TN][4], R* c, const T* bias, const T* z0, const T* z1,
                                              const Tile& tile, int filters, int ldc, const Plane& p)
{
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, column = blockIdx.y * BN + warp * 16 + lane / 4 * 2;
    const int x = tile.x + lane % 4 * 2, rows = p.height - tile.y;
    constexpr bool ALIKE = (Z0 == 0 || Z0 == 2) && (Z1 == 0 || Z1 == 2);  // for all pixels
    if (column >= filters || x >= p.width) return;
    Operands<2> with = {};
    if constexpr (ALIKE) with = operands_at<2>(column, 0, column, 2, bias, z0, z1);
    const auto finished = [&](int j, int q, int place) {
        if constexpr (!ALIKE) with = operands_at<2>((long long)place * ldc + column, place, column, 2, bias, z0, z1);
        const float pair[2] = {sums[j][q], sums[j][2 + q]};
        return with_epilogue(pair, with);
    };
    int place = place_of(tile.n, tile.y, x, p);
#pragma unroll
    for (int j = 0; j < TN; j += POOL ? 2 : 1) {
        if (j >= rows) return;
        R* const to = c + (long long)place * ldc + column;
        if constexpr (POOL) {
            auto best = finished(j, 0, place);
#pragma unroll
            for (int q = 1; q < 4; ++q) best = greater(best, finished(j + q / 2, q % 2, place));
            keep(to, best, 2);
            place += p.width / 2;
        } else {
            keep(to, finished(j, 0, place), 2);
            if (x + 1 < p.width) keep(to + ldc, finished(j, 1, place + 1), 2);
            place += p.width;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
mma_stationary(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, R* c, const T* bias, const T* z0,
               const T* z1, int filters, int ldc, int count, const __grid_constant__ Plane p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 tiles = shared_address(shared), kept = tiles + GROUPS * STAGES * STAGE, loaded = kept + WEIGHTS;
    const Pipeline<GROUPS * STAGES> pipeline(loaded + 8);
    const u32 turns = loaded + 8 + GROUPS * STAGES * 16;  // of each group
    if (threadIdx.x == 0) {
        mbarrier_init(loaded, 1);
        for (int i = 0; i < GROUPS; ++i) mbarrier_init(turns + i * 8, 4);
        pipeline.begin(1, 4);
        fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if (threadIdx.x == CONSUMERS) fetch(&a, &b, tiles, kept, pipeline, loaded, count, p);
        return;
    }
    grid_dependency_sync();

    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    mbarrier_wait(loaded, 0);
    for (int mine = 0;; ++mine) {
        const int number = blockIdx.x + (mine * GROUPS + group) * gridDim.x;
        if (number >= count) break;
        float sums[PARTS][TN][4] = {};
        int left = -1;  // the stage that the products under way still read
        const auto leave = [&] {
            if (lane == 0 && left >= 0) mbarrier_arrive(pipeline.empty(left));
        };
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const Stage from(group, mine, chunk);
            mbarrier_wait(pipeline.full(from.place), from.parity);
            if constexpr (IN_TURNS) mbarrier_wait(turns + group * 8, mine & 1 ^ group == 0);
            settle(sums);
            wgmma_fence();
            multiply(sums, tiles + from.place * STAGE, kept + chunk * TAPS * OF_TAP);
            if constexpr (CHUNKS > 1 && STAGES > 1) wgmma_wait<1>(), leave();
            left = from.place;
            if constexpr (CHUNKS > 1 && STAGES == 1) {  // the next one arrives when this one is left
                wgmma_wait<0>();
                leave();
                left = -1;
            }
        }
        if constexpr (IN_TURNS) {
            wgmma_wait<1>();
            __syncwarp();  // all lanes have waited for their turn
            if (lane == 0) mbarrier_arrive(turns + (group + 1) % GROUPS * 8);
        }
        wgmma_wait<0>();
        settle(sums);
        leave();
        const Tile tile(in_order(number, count), p);
        if constexpr (FILTERS_DOWN) finish_across(sums[0], c, bias, z0, z1, tile, filters, ldc, p);
        else finish(sums, c, bias, z0, z1, tile, filters, ldc, p);
    }
}
