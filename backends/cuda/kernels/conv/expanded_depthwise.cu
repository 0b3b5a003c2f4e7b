// A 1x1 convolution that expands the channels and the depthwise convolution behind it as one kernel, in float32: what lies in
// between never leaves the multiprocessor; compare inverted_residual.cu.
//
// A block computes TILE_H x TILE_W pixels of the result, CHUNK channels at a time. It keeps the box that their windows read of
// the image as two float16 numbers each, see halves.cuh, with a scale per pixel.
//
// expand  multiplies pixels by weights in halves (mma.sync), and stores them in the box of expanded pixels, which stays zero
//         outside of the image.
// filter  has a row of the tile for each warp and a channel for each lane, which keeps what its window covers in registers
//         and moves it along the row.
//
// `weights` is stored chunk by chunk in the order of shared memory, see expanded_depthwise.py.
//
// Compile-time: R and Z as in epilogue.cuh; TERMS, the channels of the image in sixteens; CHUNK, 32; KH KW; STEP_H STEP_W; TILE_H
// TILE_W; RESIDENT; BIAS Z0 Z1 VECTOR_C. Generated: `expanded::epilogue` and `filtered::epilogue`.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/halves.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, TN = CHUNK / 8;
constexpr int BOX_H = (TILE_H - 1) * STEP_H + KH, BOX_W = (TILE_W - 1) * STEP_W + KW;  // what the windows cover
constexpr int ROWS_IN = (BOX_H * BOX_W + 15) / 16 * 16;
// Rows of halves are an odd number of words of 16 bytes apart, so that eight of them are in different banks; four pixels of
// the box, of which a thread stores two numbers each, as well.
constexpr int PITCH_IN = (TERMS / 8 | 1) * 16, PITCH = CHUNK * 4 + 32;
// The weights of a chunk in bytes: of the expansion in halves with factors and a bias; of the windows with a bias.
constexpr int LOW = CHUNK * PITCH_IN, FACTORS = 2 * LOW, SHIFTS = FACTORS + CHUNK * 4, WINDOW = SHIFTS + CHUNK * 4;
constexpr int WINDOW_SHIFTS = WINDOW + KH * KW * CHUNK * 4, WEIGHTS = WINDOW_SHIFTS + CHUNK * 4;
// The layout of shared memory: the image in halves, low parts behind high ones; inverse scales of its pixels,
// negative outside of it; the expanded box; weights of two chunks.
constexpr int LOW_IMAGE = ROWS_IN * PITCH_IN, INVERSE = 2 * LOW_IMAGE;
constexpr int BOX = INVERSE + ROWS_IN * 4, CHUNKS = BOX + BOX_H * BOX_W * PITCH;
// When the image is cut: threads of a pixel, pixels of all threads, and how many of its pixels a thread loads at once.
constexpr int LANES = TERMS <= 16 ? 4 : 8, PIXELS = THREADS / LANES, SHARE = (ROWS_IN + PIXELS - 1) / PIXELS;
constexpr int ROUNDS = (SHARE + 7) / 8, AT_ONCE = (SHARE + ROUNDS - 1) / ROUNDS;
static_assert(CHUNK == 32 && TERMS <= 4 * LANES && TERMS % 16 == 0, "");

#include "conv/residual_plane.cuh"

__device__ __forceinline__ void load_weights(u32 to, const unsigned char* from)
{
    for (int i = threadIdx.x * 16; i < WEIGHTS; i += THREADS * 16) cp_async<8>(to + i, (const T*)(from + i), true);
    cp_async_commit();
}

// Cuts the pixels of the image in halves; LANES threads have four channels each of one. Those of the box are numbered, so that
// rows and columns follow from a constant.
__device__ __forceinline__ void cut_image(unsigned char* shared, const float* image, int top, int left, const Plane& p)
{
    const int lane = threadIdx.x % LANES;
#pragma unroll 1
    for (int first = threadIdx.x / LANES; first < ROWS_IN; first += AT_ONCE * PIXELS) {
        float4 found[AT_ONCE];
        bool inside[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int pixel = first + i * PIXELS, row = top + pixel / BOX_W, column = left + pixel % BOX_W;
            inside[i] = pixel < BOX_H * BOX_W && (u32)row < (u32)p.height && (u32)column < (u32)p.width;
            found[i] = make_float4(0, 0, 0, 0);
            if (inside[i] && lane * 4 < p.channels)
                found[i] = *(const float4*)(image + (long long)(row * p.width + column) * p.row_x + lane * 4);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int pixel = first + i * PIXELS;
            const float x[4] = {found[i].x, found[i].y, found[i].z, found[i].w};
            float most = 0;
#pragma unroll
            for (int q = 0; q < 4; ++q) most = fmaxf(most, finite_or_zero(fabsf(x[q])));
#pragma unroll
            for (int other = 1; other < LANES; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
            const RowScale by(__float_as_uint(most));
            u32 high[2], low[2];
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float a = x[2 * q] * by.scale, b = x[2 * q + 1] * by.scale;
                const Halves halves(a, b, finite_or_zero(a), finite_or_zero(b));
                high[q] = halves.high, low[q] = halves.low;
            }
            if (pixel >= ROWS_IN) continue;
            if (lane * 4 < TERMS) {
                unsigned char* to = shared + pixel * PITCH_IN + lane * 8;
                *(uint2*)to = make_uint2(high[0], high[1]);
                *(uint2*)(to + LOW_IMAGE) = make_uint2(low[0], low[1]);
            }
            if (lane == 0) *(float*)(shared + INVERSE + pixel * 4) = inside[i] ? by.inverse * LESS : -1.0f;
        }
    }
}

// Expands the pixels of the image by a chunk of weights; a warp has 16 of them at a time.
__device__ __forceinline__ void expand(unsigned char* shared, int weights)
{
    const int lane = threadIdx.x % 32;
    const u32 base = shared_address(shared);
    const float *factors = (const float*)(shared + weights + FACTORS), *shifts = (const float*)(shared + weights + SHIFTS);
    for (int band = threadIdx.x / 32; band * 16 < ROWS_IN; band += WARPS) {
        float sums[TN][4] = {};
        const u32 a = base + (band * 16 + lane % 16) * PITCH_IN + lane / 16 * 16;
        const u32 b = base + weights + (lane % 8 + lane / 16 * 8) * PITCH_IN + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < TERMS / 16; ++k) {
            u32 left[2][4], right[2][TN / 2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                ldmatrix_x4(left[part], a + part * LOW_IMAGE + k * 32);
#pragma unroll
                for (int j = 0; j < TN / 2; ++j) ldmatrix_x4(right[part][j], b + part * LOW + j * 16 * PITCH_IN + k * 32);
            }
#pragma unroll
            for (int product = 0; product < 3; ++product)  // low by high, high by low, high by high
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const u32* by = right[product == 1][j / 2] + j % 2 * 2;
                    MMA(sums[j], left[product == 0], by[0], by[1]);
                }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = band * 16 + lane / 4 + half * 8;
            const float inverse = *(const float*)(shared + INVERSE + row * 4);
            if (inverse < 0) continue;
            unsigned char* const to = shared + BOX + row * PITCH;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int column = j * 8 + lane % 4 * 2;
                float2 result;
                result.x = expanded::epilogue(sums[j][2 * half] * inverse * factors[column] + shifts[column], 0, 0, 0, nullptr, nullptr);
                result.y = expanded::epilogue(sums[j][2 * half + 1] * inverse * factors[column + 1] + shifts[column + 1], 0, 0, 0, nullptr, nullptr);
                *(float2*)(to + column * 4) = result;
            }
        }
    }
}

// The depthwise convolution of a chunk.
__device__ __forceinline__ void filter(const unsigned char* shared, int weights, float* y, int row0, int column0, int channel,
                                       const Plane& p)
{
    const int lane = threadIdx.x % 32;
    const float* windows = (const float*)(shared + weights + WINDOW) + lane;
    float by[KH][KW];
#pragma unroll
    for (int r = 0; r < KH; ++r)
#pragma unroll
        for (int s = 0; s < KW; ++s) by[r][s] = windows[(r * KW + s) * CHUNK];
    const float shift = windows[KH * KW * CHUNK];
    for (int row = threadIdx.x / 32; row < TILE_H; row += WARPS) {
        const unsigned char* from = shared + BOX + row * STEP_H * BOX_W * PITCH + lane * 4;
        float* to = y + ((long long)(row0 + row) * p.out_width + column0) * p.row_y + channel + lane;
        float x[KH][KW];
#pragma unroll
        for (int column = 0; column < TILE_W; ++column) {
#pragma unroll
            for (int r = 0; r < KH; ++r)
#pragma unroll
                for (int s = 0; s < KW; ++s)
                    x[r][s] = column > 0 && s + STEP_W < KW
                                  ? x[r][s + STEP_W < KW ? s + STEP_W : s]
                                  : *(const float*)(from + (r * BOX_W + column * STEP_W + s) * PITCH);
            float sum = shift;
#pragma unroll
            for (int r = 0; r < KH; ++r)
#pragma unroll
                for (int s = 0; s < KW; ++s) sum = fmaf(x[r][s], by[r][s], sum);
            if (row0 + row < p.out_height && column0 + column < p.out_width && channel + lane < p.filters)
                to[(long long)column * p.row_y] = filtered::epilogue(sum, 0, 0, 0, nullptr, nullptr);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
expanded_depthwise(const float* x, const T* weights, float* y, Plane p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const int tile = in_order(blockIdx.x, gridDim.x), across = tile % p.across, down = tile / p.across % p.down, n = tile / p.across / p.down;
    const int row0 = down * TILE_H, column0 = across * TILE_W;
    const int top = row0 * STEP_H - p.pad_h, left = column0 * STEP_W - p.pad_w;
    const unsigned char* of_chunks = (const unsigned char*)weights;
    const u32 base = shared_address(shared);

    load_weights(base + CHUNKS, of_chunks);
    // Pixels outside of the image stay zero.
    if (top < 0 || left < 0 || top + BOX_H > p.height || left + BOX_W > p.width)
        for (int i = threadIdx.x; i < BOX_H * BOX_W; i += THREADS) {
            const int row = top + i / BOX_W, column = left + i % BOX_W;
            if ((u32)row < (u32)p.height && (u32)column < (u32)p.width) continue;
#pragma unroll
            for (int word = 0; word < PITCH; word += 16) fill<16>(base + BOX + i * PITCH + word, 0);
        }
    grid_dependency_sync();
    cut_image(shared, x + (long long)n * p.height * p.width * p.row_x, top, left, p);
    float* const own = y + (long long)n * p.out_height * p.out_width * p.row_y;
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
        const int weights = CHUNKS + chunk % 2 * WEIGHTS;
        cp_async_wait<0>();
        __syncthreads();  // all threads have read what is overwritten
        if (chunk + 1 < p.chunks)
            load_weights(base + CHUNKS + (chunk + 1) % 2 * WEIGHTS, of_chunks + (long long)(chunk + 1) * WEIGHTS);
        expand(shared, weights);
        __syncthreads();
        filter(shared, weights, own, row0, column0, chunk * CHUNK, p);
    }
}
