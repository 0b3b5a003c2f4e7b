// A convolution of an image of few channels in C order, such as a network's first layer, on tensor cores; its result has
// its channels innermost. With POOL_H, the maximum of windows of results is stored in their place.
//
// A block computes TILE_H x TILE_W pixels by FILTERS filters. The part of the image that they read is in shared memory with
// pixels of four channels, rounded to T. float32 is the sum of two float16 numbers (PARTS, see halves.cuh): the image of a
// block has one scale, every filter has another, and sums of up to 64 terms are added in float32. Windows are not copied: a row of one is adjacent pixels, of which ldmatrix reads
// two in 16 bytes. Words begin at even pixels, so if windows begin at odd ones, too, a second copy is one pixel further.
// A row of a window has SPAN pixels, those behind KW with weights of zero.
//
// Types: S, of the image; T, of weights; Z, of the bias, and R as in epilogue.cuh. Compile-time: PARTS; CHANNELS; KD KH KW, of a window; STEP_H STEP_W;
// TILE_H TILE_W; TM, of 128 pixels; FILTERS; RESIDENT; POOL_H POOL_W, 0 without, and POOL_STEP_H POOL_STEP_W; BIAS Z0 Z1 VECTOR_C.

#include "ptx/pdl.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "elementwise/greater.cuh"
#include "elementwise/maximum.cuh"
#include "gemm/halves.cuh"
#include "elementwise/divide.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, TN = FILTERS / 8;  // a warp has TM x TN tiles of 16 x 8 results
constexpr int PIXELS = TILE_H * TILE_W;
constexpr int SPAN = (KW + 3) / 4 * 4, STEPS = KD * KH * SPAN / 4;  // a step is 16 terms: four pixels
constexpr int ROWS = (TILE_H - 1) * STEP_H + KH, COLUMNS = ((TILE_W - 1) * STEP_W + SPAN + 1) / 2 * 2;
constexpr int COPIES = STEP_W % 2 ? 2 : 1;
// Copies begin half a row of banks apart.
constexpr int COUNT = KD * ROWS * COLUMNS;  // frames of a volume are below each other
constexpr int IMAGE = ((COUNT * 8 + 127) / 128 * 128) + 64;
// Rows of weights and results are an odd number of words of 16 bytes apart, so that eight are in different banks.
constexpr int PITCH_B = STEPS * 32 + 16, PITCH_C = FILTERS * sizeof(R) + 16;
// Low parts are behind high ones. Results take the place of the image and the weights, if these are in parts.
constexpr int LOW_IMAGE = COPIES * IMAGE, LOW_WEIGHTS = FILTERS * PITCH_B;
constexpr int WEIGHTS = (PARTS * LOW_IMAGE + 127) / 128 * 128, BEHIND = WEIGHTS + PARTS * LOW_WEIGHTS;
constexpr int RESULTS = PARTS == 1 ? BEHIND : 0;
constexpr int TOGETHER = PARTS == 1 ? KD * KH : SPAN > 16 ? 1 : 16 / SPAN;  // rows of a window that tensor cores add up
constexpr int AT_ONCE = PARTS == 2 && TN % 4 == 0 ? 4 : 2;          // eights of filters, whose products take turns
static_assert(PIXELS <= WARPS * TM * 16 && TN % 2 == 0 && sizeof(R) == (PARTS == 1 ? 2 : 4), "");

#include "conv/few_channels_tile.cuh"

struct alignas(8) Pixel {
    T at[4];
};

__device__ __forceinline__ void keep_pixel(unsigned char* image, int place, const Pixel& pixel)
{
    *(Pixel*)(image + place * 8) = pixel;
    if (COPIES == 2 && place > 0) *(Pixel*)(image + IMAGE + (place - 1) * 8) = pixel;
}

// Passes the pixels of the part of the image from frame `front`, row `top` and column `left` on to `keep`.
template <typename Keep>
__device__ __forceinline__ void load_image(const S* from, int front, int top, int left, const Plane& p, Keep keep)
{
    constexpr int BATCH = 4;
    const int plane = p.depth * p.height * p.width;  // from one channel to the next
    for (int first = threadIdx.x; first < COUNT; first += BATCH * THREADS) {
        S found[BATCH][CHANNELS] = {};
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int place = first + i * THREADS, line = place / COLUMNS, column = left + place % COLUMNS;
            const int frame = front + line / ROWS, row = top + line % ROWS;
            const bool inside = (u32)frame < (u32)p.depth && (u32)row < (u32)p.height && (u32)column < (u32)p.width
                                && place < COUNT;
#pragma unroll
            for (int channel = 0; channel < CHANNELS; ++channel)
                if (inside) found[i][channel] = from[channel * plane + (frame * p.height + row) * p.width + column];
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int place = first + i * THREADS;
            if (place >= COUNT) break;
            keep(place, found[i]);
        }
    }
}

// Brings it to shared memory.
__device__ __forceinline__ void load_rounded(unsigned char* shared, const S* from, int front, int top, int left,
                                             const Plane& p)
{
    load_image(from, front, top, left, p, [&](int place, const S (&found)[CHANNELS]) {
        Pixel pixel = {};
#pragma unroll
        for (int channel = 0; channel < CHANNELS; ++channel) pixel.at[channel] = T(found[channel]);
        keep_pixel(shared, place, pixel);
    });
}

// The same in halves; returns the inverse of their scale. The image is behind the weights first.
__device__ __forceinline__ float load_halves(unsigned char* shared, const S* from, int front, int top, int left,
                                             const Plane& p)
{
    float4* staged = (float4*)(shared + BEHIND);
    float most = 0;
    load_image(from, front, top, left, p, [&](int place, const S (&found)[CHANNELS]) {
        float pixel[4] = {};
#pragma unroll
        for (int channel = 0; channel < CHANNELS; ++channel) {
            pixel[channel] = float(found[channel]);
            most = fmaxf(most, finite_or_zero(fabsf(pixel[channel])));
        }
        staged[place] = *(const float4*)pixel;
    });
    const RowScale by = scale_of_block(most);
    for (int place = threadIdx.x; place < COUNT; place += THREADS) {
        const float4 found = staged[place];
        const float x[4] = {found.x * by.scale, found.y * by.scale, found.z * by.scale, found.w * by.scale};
        u32 high[2], low[2];
        cut_pixel(x, high, low);
        keep_pixel(shared, place, *(const Pixel*)high);
        keep_pixel(shared + LOW_IMAGE, place, *(const Pixel*)low);
    }
    return by.inverse * LESS;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
few_channels_mma(const S* x, const T* w, const float* scales, R* y, const Z* bias, const Z* z0, const Z* z1, Plane p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const u32 base = shared_address(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.y * FILTERS;
    const int across = blockIdx.x % p.across, down = blockIdx.x / p.across % p.down, n = blockIdx.x / p.across / p.down;
    int row0 = down * TILE_H, column0 = across * TILE_W;  // of the results, before they are pooled
    if constexpr (POOL_H > 0) {
        row0 = down * ((TILE_H - POOL_H) / POOL_STEP_H + 1) * POOL_STEP_H - p.pool_pad_h;
        column0 = across * ((TILE_W - POOL_W) / POOL_STEP_W + 1) * POOL_STEP_W - p.pool_pad_w;
    }

    constexpr int WORDS_B = STEPS * 2;  // of a row of weights, 16 bytes each
    for (int i = threadIdx.x; i < PARTS * FILTERS * WORDS_B; i += THREADS) {
        const int row = i / WORDS_B, word = i % WORDS_B, part = row / FILTERS;
        const long long from = (long long)part * gridDim.y * FILTERS + first + row % FILTERS;
        cp_async<8>(base + WEIGHTS + row * PITCH_B + word * 16, w + (from * WORDS_B + word) * 8, true);
    }
    cp_async_commit();
    grid_dependency_sync();
    int front;
    const S* image = sample_of(x, n, front, p);
    const int top = row0 * STEP_H - p.pad_h, left_most = column0 * STEP_W - p.pad_w;
    float inverse = 1;
    if constexpr (PARTS == 1) load_rounded(shared, image, front, top, left_most, p);
    else inverse = load_halves(shared, image, front, top, left_most, p);
    cp_async_wait<0>();
    __syncthreads();

    u32 windows[TM];  // of a lane's rows of a tile
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int pixel = min((warp * TM + i) * 16 + lane % 16, PIXELS - 1), column = pixel % TILE_W * STEP_W;
        const int copy = COPIES == 2 ? column % 2 : 0;
        windows[i] = base + copy * IMAGE + (pixel / TILE_W * STEP_H * COLUMNS + column - copy) * 8 + lane / 16 * 16;
    }
    const u32 filters = base + WEIGHTS + (lane % 8 + lane / 16 * 8) * PITCH_B + lane / 8 % 2 * 16;
    float totals[TM][TN][4] = {};
#pragma unroll(PARTS == 1 ? KD * KH : 1)
    for (int first_row = 0; first_row < KD * KH; first_row += TOGETHER) {
        float own[TM][TN][4] = {};
        float (&sums)[TM][TN][4] = TOGETHER < KD * KH ? own : totals;
#pragma unroll
        for (int next = 0; next < TOGETHER; ++next)
#pragma unroll
            for (int s = 0; s < SPAN / 4; ++s) {
                const int r = first_row + next;
                if (KD * KH % TOGETHER && r >= KD * KH) break;
                u32 left[PARTS][TM][4];
#pragma unroll
                for (int part = 0; part < PARTS; ++part)
#pragma unroll
                    for (int i = 0; i < TM; ++i)
                        ldmatrix_x4(left[part][i], windows[i] + part * LOW_IMAGE + (r / KH * ROWS + r % KH) * COLUMNS * 8 + s * 32);
#pragma unroll
                for (int j = 0; j < TN; j += AT_ONCE) {
                    u32 right[PARTS][AT_ONCE / 2][4];
#pragma unroll
                    for (int part = 0; part < PARTS; ++part)
#pragma unroll
                        for (int q = 0; q < AT_ONCE; q += 2)
                            ldmatrix_x4(right[part][q / 2], filters + part * LOW_WEIGHTS + (j + q) * 8 * PITCH_B
                                                                + (r * (SPAN / 4) + s) * 32);
#pragma unroll
                    for (int product = PARTS == 1 ? 2 : 0; product < 3; ++product)  // low by high, high by low, high by high
#pragma unroll
                        for (int i = 0; i < TM; ++i)
#pragma unroll
                            for (int q = 0; q < AT_ONCE; ++q) {
                                const u32* by = right[product == 1][q / 2] + q % 2 * 2;
                                MMA(sums[i][j + q], left[product == 0][i], by[0], by[1]);
                            }
                }
            }
        if constexpr (TOGETHER < KD * KH) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
#pragma unroll
                    for (int q = 0; q < 4; ++q) totals[i][j][q] += own[i][j][q];
        }
    }
    if constexpr (RESULTS == 0) __syncthreads();  // all threads have read what results replace

#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const int column = j * 8 + lane % 4 * 2, channel = first + column;
        Operands<2> with = {};
        if (channel < p.filters) with = operands_at<2>(channel, 0, channel, p.filters - channel, bias, z0, z1);
        float2 scale = make_float2(1, 1);
        if constexpr (PARTS == 2) scale = *(const float2*)(scales + channel);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float* of = totals[i][j] + half * 2;
                const float pair[2] = {of[0] * inverse * scale.x, of[1] * inverse * scale.y};
                const int pixel = (warp * TM + i) * 16 + lane / 4 + half * 8;
                *(Neighbours<R, 2>*)(shared + RESULTS + pixel * PITCH_C + column * sizeof(R)) = with_epilogue(pair, with);
            }
    }
    __syncthreads();
    const long long pixels = POOL_H ? p.pooled_height * p.pooled_width : p.out_height * p.out_width;
    store_results<FILTERS / 8>(shared + RESULTS, y + n * pixels * p.row_y, row0, column0, first, p);
}
