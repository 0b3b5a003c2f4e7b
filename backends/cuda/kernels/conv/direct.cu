// Direct convolution: the loops of the definition, with sums in registers and shared inputs in shared
// memory. A block computes FILTERS channels of a tile of pixels; it loads the part of the image under
// the tile, CHUNK channels at a time, together with their weights.
//
// X and Y are the types of input and result, A that of the arithmetic. Weights are packed as
// [block of filters][channel][tap][FILTERS]. Compile-time: TILE_H TILE_W, pixels of a tile, PIXELS
// of them per thread; FILTERS; CHUNK; KH KW, the window; SH SW, strides; DH DW, dilations; BIAS.

constexpr int THREADS = TILE_H * TILE_W / PIXELS;
constexpr int TAPS = KH * KW;
constexpr int PATCH_H = (TILE_H - 1) * SH + (KH - 1) * DH + 1;
constexpr int PATCH_W = (TILE_W - 1) * SW + (KW - 1) * DW + 1;
constexpr int PATCH = PATCH_H * PATCH_W;

struct Plane {
    int channels, filters, blocks;                // of one group
    int height, width, out_height, out_width, pad_h, pad_w;
    int of_image, of_channel, of_row, of_column;  // strides of the input
    int to_image, to_channel, to_row, to_column;  // strides of the result
};

extern "C" __global__ void __launch_bounds__(THREADS)
direct(const X* x, const X* w, Y* y, const Y* bias, const Y* z0, const Y* z1, Plane p)
{
    __shared__ __align__(16) A patch[CHUNK * PATCH];
    __shared__ __align__(16) A weights[CHUNK * TAPS * FILTERS];
    const int tiles_w = (p.out_width + TILE_W - 1) / TILE_W;
    const int y0 = blockIdx.x / tiles_w * TILE_H, x0 = blockIdx.x % tiles_w * TILE_W;
    const int group = blockIdx.y / p.blocks, block = blockIdx.y % p.blocks, image = blockIdx.z;
    x += (long long)image * p.of_image + (long long)group * p.channels * p.of_channel;
    w += (long long)blockIdx.y * p.channels * TAPS * FILTERS;

    int corners[PIXELS];  // where the windows of this thread begin in the patch
#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int at = threadIdx.x + i * THREADS;
        corners[i] = at / TILE_W * SH * PATCH_W + at % TILE_W * SW;
    }
    A sums[PIXELS][FILTERS] = {};
    for (int c0 = 0; c0 < p.channels; c0 += CHUNK) {
        const int some = min(CHUNK, p.channels - c0);
        for (int i = threadIdx.x; i < some * PATCH; i += THREADS) {
            const int channel = c0 + i / PATCH, at = i % PATCH;
            const int u = y0 * SH - p.pad_h + at / PATCH_W, v = x0 * SW - p.pad_w + at % PATCH_W;
            const bool inside = (unsigned)u < (unsigned)p.height && (unsigned)v < (unsigned)p.width;
            patch[i] = inside ? A(x[(long long)channel * p.of_channel + (long long)u * p.of_row
                                    + (long long)v * p.of_column])
                              : A(0);
        }
        for (int i = threadIdx.x; i < some * TAPS * FILTERS; i += THREADS)
            weights[i] = A(w[(long long)c0 * TAPS * FILTERS + i]);
        __syncthreads();
        for (int c = 0; c < some; ++c)
            for (int a = 0; a < KH; ++a)
#pragma unroll
                for (int b = 0; b < KW; ++b) {
                    const A* row = weights + (c * TAPS + a * KW + b) * FILTERS;
                    A values[PIXELS];
#pragma unroll
                    for (int i = 0; i < PIXELS; ++i)
                        values[i] = patch[c * PATCH + corners[i] + a * DH * PATCH_W + b * DW];
#pragma unroll
                    for (int q = 0; q < FILTERS; ++q)
#pragma unroll
                        for (int i = 0; i < PIXELS; ++i) sums[i][q] += values[i] * row[q];
                }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < PIXELS; ++i) {
        const int at = threadIdx.x + i * THREADS;
        const int row = y0 + at / TILE_W, column = x0 + at % TILE_W;
        if (row >= p.out_height || column >= p.out_width) continue;
        const long long place = (long long)image * p.to_image + (long long)row * p.to_row
                                + (long long)column * p.to_column;
#pragma unroll
        for (int q = 0; q < FILTERS; ++q) {
            const int filter = block * FILTERS + q;
            if (filter >= p.filters) break;
            const int channel = group * p.filters + filter;
            const long long target = place + (long long)channel * p.to_channel;
            const A sum = sums[i][q] + (BIAS ? A(bias[channel]) : A(0));
            y[target] = epilogue(sum, target, image, channel, z0, z1);
        }
    }
}
