// The same as few_channels_mma.cu by products of warpgroups (wgmma, Hopper), for windows that are two pixels apart, or one.
//
// Two pixels of four numbers are 16 bytes: so far apart are windows of neighbours, and so long is half of the terms of a
// step. Thus the left operand of eight neighbours is the row of the image itself, each of whose words is read by several
// of them. A product has 64 rows, whose eights are equally far apart: a patch of 8 x 8 pixels, whose windows are STEP_H rows
// of the image apart. Windows that are one pixel apart are every other one's neighbours: a second copy of each row, one pixel
// further, is beside it, and a patch has four rows of eight pixels with even columns, and eight with odd ones.
//
// With PIXELS_ACROSS, filters are the left operand and 128 pixels the right one: a patch has twice as many rows, and tensor
// cores read a quarter less. Rows of weights are in an order that gives a thread two adjacent filters.
//
// A block computes UNITS patches with each of its warpgroups, tile after tile. It keeps the weights, and while it computes a
// tile, the part of the image that the next one reads arrives as it is, IN_WORDS of 16 bytes or number by number. MAPPED
// results leave by TMA, 128 bytes of a pixel at a time, and threads go on as soon as these have been read.
//
// Compile-time: as in few_channels_mma.cu, without TM; STAGED, the filters whose results are in shared memory at once;
// PIXELS_ACROSS; MAPPED; IN_WORDS.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "elementwise/greater.cuh"
#include "elementwise/maximum.cuh"
#include "gemm/halves.cuh"
#include "elementwise/divide.cuh"

constexpr int GROUPS = 2, WARPS = 4 * GROUPS, THREADS = 32 * WARPS;

#include "conv/image_words.cuh"

constexpr int OF_PATCH = PIXELS_ACROSS ? 128 : 64, TN = (PIXELS_ACROSS ? OF_PATCH : FILTERS) / 8;
constexpr int COPIES = STEP_W == 1 ? 2 : 1, PATCH_W = 8 * COPIES, PATCH_H = OF_PATCH / PATCH_W;
constexpr int PIXELS = TILE_H * TILE_W, PATCHES = TILE_W / PATCH_W, UNITS = PIXELS / OF_PATCH / GROUPS;
constexpr int SPAN = (KW + 3) / 4 * 4, TERMS = KH * SPAN * 4, STEPS = TERMS / 16, OF_ROW = SPAN / 4;  // of 16 terms
constexpr int ROWS = (TILE_H - 1) * STEP_H + KH, COLUMNS = ((TILE_W - 1) * STEP_W + SPAN + 1) / 2 * 2;
constexpr int COUNT = ROWS * COLUMNS, ROW = COPIES * COLUMNS;  // pixels of a row with its copy
constexpr int OWN = (COUNT + THREADS - 1) / THREADS;  // pixels of a thread
// Numbers of a row and of a channel of the image as it arrives.
constexpr int RAW_ROW = IN_WORDS ? row_of_words(COLUMNS) : COLUMNS, RAW_PLANE = ROWS * RAW_ROW;
// In shared memory: weights, low parts behind high ones; the image as it is, channel by channel, and as pixels of four; and
// results, in the place of the latter if these are in parts.
constexpr int LOW_WEIGHTS = FILTERS * TERMS * 2, RAW = PARTS * LOW_WEIGHTS;
constexpr int ALIGNED = MAPPED ? 1024 : 16, LOW_IMAGE = ROWS * ROW * 8;
constexpr int IMAGE = (RAW + RAW_PLANE * CHANNELS * (int)sizeof(S) + ALIGNED - 1) / ALIGNED * ALIGNED;
constexpr int RESULTS = PARTS == 1 ? (IMAGE + LOW_IMAGE + ALIGNED - 1) / ALIGNED * ALIGNED : IMAGE;
constexpr int PITCH_C = STAGED * sizeof(R) + (MAPPED ? 0 : 16);
constexpr int TOGETHER = PARTS == 1 ? KH : SPAN > 16 ? 1 : 16 / SPAN;  // rows of a window that tensor cores add up
static_assert(TILE_H % PATCH_H == 0 && TILE_W % PATCH_W == 0 && PIXELS == UNITS * GROUPS * OF_PATCH, "patches");
static_assert(!PIXELS_ACROSS || (PARTS == 1 && FILTERS == 64 && STAGED == FILTERS), "rows of a product");
static_assert(STEP_W == 2 || (STEP_W == 1 && STEP_H == 1), "distances of windows");
static_assert(!MAPPED || (POOL_H == 0 && PITCH_C == 128), "a row of results");
static_assert(!IN_WORDS || PARTS == 1, "a row of the image");
static_assert(FILTERS % STAGED == 0 && STAGED % 16 == 0 && sizeof(R) == (PARTS == 1 ? 2 : 4), "");

#include "conv/few_channels_tile.cuh"

struct alignas(8) Pixel {
    T at[4];
};

__device__ __forceinline__ void keep_pixel(Pixel* image, int place, const Pixel& pixel)
{
    if constexpr (COPIES == 2) place += place / COLUMNS * COLUMNS;
    image[place] = pixel;
    if (COPIES == 2 && place % ROW > 0) image[place + COLUMNS - 1] = pixel;
}

// Where a tile of results is, before they are pooled, and the part of the image that its windows read.
struct Tile {
    int n, row0, column0, top, left;

    __device__ __forceinline__ Tile(int tile, const Plane& p)
    {
        const int across = tile % p.across, down = tile / p.across % p.down;
        n = tile / p.across / p.down, row0 = down * TILE_H, column0 = across * TILE_W;
        if constexpr (POOL_H > 0) {
            row0 = down * ((TILE_H - POOL_H) / POOL_STEP_H + 1) * POOL_STEP_H - p.pool_pad_h;
            column0 = across * ((TILE_W - POOL_W) / POOL_STEP_W + 1) * POOL_STEP_W - p.pool_pad_w;
        }
        top = row0 * STEP_H - p.pad_h, left = column0 * STEP_W - p.pad_w;
    }
};

// Requests the part of an image, if not in words each thread its pixels.
__device__ __forceinline__ void fetch(unsigned char* raw, const S* x, const Tile& tile, const Plane& p)
{
    const int plane = p.depth * p.height * p.width;  // from one channel to the next
    if constexpr (IN_WORDS) {
        const S* image = x + (long long)tile.n * CHANNELS * plane;
        request_words<CHANNELS, ROWS, RAW_ROW / WORD>(shared_address(raw), image, tile.top, tile.left, p.height, p.width);
        cp_async_commit();
        return;
    }
    int front;
    const S* sample = sample_of(x, tile.n, front, p);
    const S* from = sample + (long long)front * p.height * p.width;
#pragma unroll 1  // registers are scarce
    for (int i = 0; i < OWN; ++i) {
        const int place = threadIdx.x + i * THREADS;
        if (COUNT % THREADS && place >= COUNT) break;
        const int row = tile.top + place / COLUMNS, column = tile.left + place % COLUMNS;
        const bool inside = (u32)row < (u32)p.height && (u32)column < (u32)p.width;
        const int at = inside ? row * p.width + column : 0;
#pragma unroll
        for (int channel = 0; channel < CHANNELS; ++channel) {
            unsigned char* to = raw + (channel * COUNT + place) * sizeof(S);
            if constexpr (sizeof(S) == 4)
                cp_async<2>(shared_address(to), (const T*)(from + channel * plane + at), inside);
            else
                *(S*)to = inside ? from[channel * plane + at] : S(0.0f);
        }
    }
    cp_async_commit();
}

// A thread's pixels in the order of products: rounded, or in halves; returns the inverse of their scale.
__device__ __forceinline__ float arrange(unsigned char* shared, const Tile& tile)
{
    const S* raw = (const S*)(shared + RAW) + (IN_WORDS ? tile.left & WORD - 1 : 0);
    Pixel* const image = (Pixel*)(shared + IMAGE);
    if constexpr (PARTS == 1) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int place = threadIdx.x + i * THREADS;
            if (COUNT % THREADS && place >= COUNT) break;
            const int from = IN_WORDS ? place / COLUMNS * RAW_ROW + place % COLUMNS : place;
            Pixel pixel = {};
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel) pixel.at[channel] = T(raw[channel * RAW_PLANE + from]);
            keep_pixel(image, place, pixel);
        }
        return 1;
    } else {
        float most = 0;
        for (int place = threadIdx.x; place < COUNT; place += THREADS)
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel)
                most = fmaxf(most, finite_or_zero(fabsf(float(raw[channel * COUNT + place]))));
        const RowScale by = scale_of_block(most);
        for (int place = threadIdx.x; place < COUNT; place += THREADS) {
            float pixel[4] = {};
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel)
                pixel[channel] = float(raw[channel * COUNT + place]) * by.scale;
            u32 high[2], low[2];
            cut_pixel(pixel, high, low);
            keep_pixel(image, place, *(const Pixel*)high);
            keep_pixel(image + LOW_IMAGE / 8, place, *(const Pixel*)low);
        }
        return by.inverse * LESS;
    }
}

// The operands of a step, of a patch whose image begins at `image` and of the weights; `part` is 1 for low parts. Only the
// lower half of a descriptor depends on the step.
__device__ __forceinline__ uint64 image_words(u32 image, int step, int part)
{
    const u32 further = step / OF_ROW * ROW * 8 + step % OF_ROW * 32 + part * LOW_IMAGE;
    return smem_descriptor_of_words<16, STEP_H * COLUMNS * 8>(0) | ((image >> 4) + (further >> 4));
}

__device__ __forceinline__ uint64 weight_words(u32 weights, int step, int part)
{
    return smem_descriptor_of_words<128, TERMS * 16>(0) | ((weights >> 4) + (step * 256 + part * LOW_WEIGHTS >> 4));
}

// The sums of patches whose images begin at `images`. In halves, sums of a patch are added one after the other.
__device__ __forceinline__ void multiply(float (&totals)[UNITS][TN][4], const u32 (&images)[UNITS], u32 weights)
{
    if constexpr (PARTS == 1) {
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < UNITS; ++i) {
                const uint64 of_image = image_words(images[i], step, 0), of_weights = weight_words(weights, step, 0);
                if constexpr (PIXELS_ACROSS) wgmma(totals[i], of_weights, of_image, step > 0);
                else wgmma(totals[i], of_image, of_weights, step > 0);
            }
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < UNITS; ++i) settle(totals[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
#pragma unroll 1
        for (int first = 0; first < STEPS; first += TOGETHER * OF_ROW) {
            float sums[TN][4];
            wgmma_fence();
#pragma unroll
            for (int product = 0; product < 3; ++product)  // low by high, high by low, high by high
#pragma unroll
                for (int next = 0; next < TOGETHER * OF_ROW; ++next) {
                    const int step = first + next;
                    if (STEPS % (TOGETHER * OF_ROW) && step >= STEPS) break;
                    wgmma(sums, image_words(images[i], step, product == 0), weight_words(weights, step, product == 1),
                          product + next > 0);
                }
            wgmma_commit();
            wgmma_wait<0>();
            settle(sums);
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    totals[i][j][q] = first > 0 ? totals[i][j][q] + sums[j][q] : sums[j][q];
        }
}

// Where pixel `place` of the eight with this number of a patch is in the results of the tile.
__device__ __forceinline__ int pixel_of(int unit, int eight, int place)
{
    const int row = unit / PATCHES * PATCH_H + eight / COPIES;
    return row * TILE_W + unit % PATCHES * PATCH_W + place * COPIES + eight % COPIES;
}

// Where the results of a pixel of the tile begin that are for adjacent filters from `column` on.
__device__ __forceinline__ unsigned char* place_of_result(unsigned char* results, int pixel, int column)
{
    const int bytes = column * (int)sizeof(R);
    return results + pixel * PITCH_C + (MAPPED ? bytes ^ (pixel & 7) << 4 : bytes);
}

// Puts results in shared memory: of the patches of a warpgroup, with filters as rows.
__device__ __forceinline__ void put_columns(unsigned char* results, const float (&totals)[UNITS][TN][4], int first,
                                            const Z* bias, const Z* z0, const Z* z1, const Plane& p)
{
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 % 4 * 16 + lane / 4 * 2, channel = first + column;
    Operands<2> with = {};
    if (channel < p.filters) with = operands_at<2>(channel, 0, channel, p.filters - channel, bias, z0, z1);
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float pair[2] = {totals[i][j][q], totals[i][j][2 + q]};
                const int pixel = pixel_of(threadIdx.x / 128 * UNITS + i, j, lane % 4 * 2 + q);
                *(Neighbours<R, 2>*)place_of_result(results, pixel, column) = with_epilogue(pair, with);
            }
}

// Stores the results of a tile in shared memory, those of STAGED filters from `first` on.
__device__ __forceinline__ void store_staged(unsigned char* results, const TensorMap* map, R* y, const Tile& tile, int first,
                                             const Plane& p)
{
    if constexpr (MAPPED) fence_proxy_async();
    __syncthreads();
    if constexpr (MAPPED) {
        if (threadIdx.x > 0) return;
        tma_store_4d(map, shared_address(results), first, tile.column0, tile.row0, tile.n);
        tma_store_wait();
    } else {
        const long long pixels = POOL_H ? p.pooled_height * p.pooled_width : p.out_height * p.out_width;
        store_results<STAGED / 8>(results, y + tile.n * pixels * p.row_y, tile.row0, tile.column0, first, p);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
few_channels_wgmma(const S* x, const T* w, const float* scales, R* y, const __grid_constant__ TensorMap map, const Z* bias,
                   const Z* z0, const Z* z1, int tiles, Plane p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 base = shared_address(shared);
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, first = blockIdx.y * FILTERS;
    const T* own = w + (long long)blockIdx.y * PARTS * FILTERS * TERMS;
    for (int i = threadIdx.x * 8; i < PARTS * FILTERS * TERMS; i += THREADS * 8) cp_async<8>(base + i * 2, own + i, true);
    grid_dependency_sync();
    fetch(shared + RAW, x, Tile(in_order(blockIdx.x, tiles), p), p);
    for (int next = blockIdx.x; next < tiles; next += gridDim.x) {
        const Tile tile(in_order(next, tiles), p);
        cp_async_wait<0>();
        if constexpr (IN_WORDS) __syncthreads();  // other threads have requested a thread's pixels
        const float inverse = arrange(shared, tile);
        fence_proxy_async();
        __syncthreads();
        if (next + gridDim.x < tiles) fetch(shared + RAW, x, Tile(in_order(next + gridDim.x, tiles), p), p);
        float totals[UNITS][TN][4];
        u32 images[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int unit = group * UNITS + i, row = unit / PATCHES * PATCH_H * STEP_H, column = unit % PATCHES * 16;
            images[i] = base + IMAGE + (row * ROW + column) * 8;
        }
        multiply(totals, images, base);
        if constexpr (PIXELS_ACROSS) {
            put_columns(shared + RESULTS, totals, first, bias, z0, z1, p);
            store_staged(shared + RESULTS, &map, y, tile, first, p);
            continue;
        }
#pragma unroll
        for (int staged = 0; staged < FILTERS; staged += STAGED) {
            if (PARTS == 2 || staged > 0) __syncthreads();  // all threads have read what results replace
#pragma unroll
            for (int j = 0; j < STAGED / 8; ++j) {
                const int column = j * 8 + lane % 4 * 2, channel = first + staged + column;
                Operands<2> with = {};
                if (channel < p.filters) with = operands_at<2>(channel, 0, channel, p.filters - channel, bias, z0, z1);
                float2 scale = make_float2(1, 1);
                if constexpr (PARTS == 2) scale = *(const float2*)(scales + channel);
#pragma unroll
                for (int i = 0; i < UNITS; ++i)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const float* of = totals[i][staged / 8 + j] + half * 2;
                        const float pair[2] = {of[0] * inverse * scale.x, of[1] * inverse * scale.y};
                        const int pixel = pixel_of(group * UNITS + i, threadIdx.x / 32 % 4 * 2 + half, lane / 4);
                        *(Neighbours<R, 2>*)place_of_result(shared + RESULTS, pixel, column) = with_epilogue(pair, with);
                    }
            }
            store_staged(shared + RESULTS, &map, y, tile, first + staged, p);
        }
    }
}
