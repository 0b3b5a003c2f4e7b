// Depthwise convolution of 16-bit floats on tensor cores, channels last: the product of pixels and a
// matrix whose diagonal is the weights of one tap, or two such products as one, has eight channels of 16 pixels.
//
// A block computes a tile of TALL x 8 pixels by 32 channels, of which each warp has eight. What the windows of the tile cover
// is in shared memory, eight channels of a pixel as a word of 16 bytes, zero outside of the image. A product has eight adjacent
// pixels of two rows, which are ROWS apart; each word that is read belongs to the windows of up to KH rows.
//
// Compile-time: see depthwise.cuh, without planes; COLUMNS is 1, VECTOR 2; ROWS, half of those of a tile.
// `w` is [channel][taps], see depthwise_mma.py. Generated: MMA and KIND.

#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "conv/depthwise.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS, CHANNELS = 8 * WARPS;
constexpr int TALL = 2 * ROWS, BOX_H = (TALL - 1) * STEP_H + KH, BOX_W = 7 * STEP_W + KW;
// Words of a warp, which begin two words behind a row of banks, so that a pixel is stored in different banks.
constexpr int BOX = BOX_H * BOX_W, PITCH = (BOX + 5) / 8 * 8 + 2;
constexpr int PAIRS = (KW + 1) / 2;  // of taps of a row
static_assert(sizeof(T) == 2 && VECTOR == 2 && PITCH >= BOX, "");

// The taps of a channel, which are adjacent and followed by zeros.
constexpr int TAPS = (KH * KW + 7) / 8 * 8;

struct alignas(16) Taps {
    u32 words[TAPS / 2];
};

extern "C" __global__ void __launch_bounds__(THREADS)
depthwise_mma(const T* x, const T* __restrict__ w, R* y, const T* bias, const T* z0, const T* z1, Plane p)
{
    extern __shared__ __align__(16) unsigned char shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockIdx.z;
    const int down = divide(blockIdx.x, p.by_across), across = blockIdx.x - down * p.across;
    const int top = down * TALL, left = across * 8;
    const int first = blockIdx.y * CHANNELS + warp * 8;  // channel of the warp
    const bool exists = first < p.channels;

    // A lane has rows 2 * (lane % 4) and the next one of column lane / 4 of the diagonal matrices.
    Taps taps = {};
    if (exists && lane / 8 == lane % 4) taps = *(const Taps*)(w + (long long)(first + lane / 4) * TAPS);
    const int place = lane / 4 % 2 * 16;
    u32 weights[KH][PAIRS][2];
#pragma unroll
    for (int r = 0; r < KH; ++r)
#pragma unroll
        for (int s = 0; s < 2 * PAIRS; ++s) {
            const int tap = r * KW + s;
            weights[r][s / 2][s % 2] = s < KW ? (tap % 2 ? taps.words[tap / 2] >> 16 : taps.words[tap / 2] & 0xffff) << place : 0;
        }
    grid_dependency_sync();

    const int word = threadIdx.x % WARPS, channel = blockIdx.y * CHANNELS + word * 8;  // which this thread loads
    const T* image = x + (long long)n * p.height * p.width * p.row_x + channel;
    for (int i = threadIdx.x / WARPS; i < BOX; i += THREADS / WARPS) {
        const int row = top * STEP_H - p.pad_h + i / BOX_W, column = left * STEP_W - p.pad_w + i % BOX_W;
        const bool inside = (u32)row < (u32)p.height && (u32)column < (u32)p.width && channel < p.channels;
        cp_async<8>(shared_address(shared) + (word * PITCH + i) * 16, inside ? image + (long long)(row * p.width + column) * p.row_x : x, inside);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    if (!exists) return;

    // Rows lane % 8 of four matrices: pixels of the upper and the lower row, then those of the next tap.
    const int matrix = lane / 8, of_tap = matrix / 2;
    const u32 words = shared_address(shared) + (warp * PITCH + matrix % 2 * ROWS * STEP_H * BOX_W + lane % 8 * STEP_W) * 16;
    const int own = first + lane % 4 * 2;
    Floats shift = {};
    if constexpr (BIAS) shift = widened(::words(bias + own));
    float sums[ROWS][4] = {};
#pragma unroll
    for (int j = 0; j < (ROWS - 1) * STEP_H + KH; ++j)
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const bool alone = 2 * pair + 1 == KW;  // the second tap does not exist
            u32 pixels[4];
            ldmatrix_x4(pixels, words + (j * BOX_W + 2 * pair + (alone ? 0 : of_tap)) * 16);
            if (alone) pixels[2] = pixels[3] = 0;
#pragma unroll
            for (int o = 0; o < ROWS; ++o) {
                const int r = j - o * STEP_H;
                if (r >= 0 && r < KH) MMA(sums[o], pixels, weights[r][pair][0], weights[r][pair][1]);
            }
        }
    const int column = left + lane / 4;
#pragma unroll
    for (int o = 0; o < ROWS; ++o)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = top + h * ROWS + o;
            if (row >= p.out_height || column >= p.out_width) continue;
            const long long pixel = ((long long)n * p.out_height + row) * p.out_width + column;
            keep(y, Floats{{sums[o][2 * h], sums[o][2 * h + 1]}}, shift, pixel, n, own, z0, z1, p);
        }
}
