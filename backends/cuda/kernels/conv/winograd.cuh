// Winograd's transforms of 3x3 windows: OUT x OUT results from EDGE x EDGE inputs with EDGE * EDGE
// multiplications, where the definition has 9 * OUT * OUT (Lavin and Gray, 2015). The points are 0,
// 1, -1 and infinity for F(2x2, 3x3); for F(4x4, 3x3) they are 0, the roots of 1/2 and of 2 with both
// signs, and infinity: with these all numbers stay near 1, and errors are half of those with 1 and 2.
//
// Compile-time: OUT, 2 or 4; POOL, whether the maximum of every 2x2 results is stored, of an even number of rows and columns.

#include "elementwise/maximum.cuh"

constexpr int EDGE = OUT + 2, POINTS = EDGE * EDGE;
constexpr float ROOT_HALF = 0.70710678118654752f, ROOT_TWO = 1.41421356237309505f;

// One row of the transform of inputs, B' d.
__device__ __forceinline__ void inputs_of(const float (&d)[EDGE], float (&v)[EDGE])
{
    if constexpr (OUT == 2) {
        v[0] = d[0] - d[2];
        v[1] = d[1] + d[2];
        v[2] = d[2] - d[1];
        v[3] = d[1] - d[3];
    } else {
        const float a = d[4] - 2 * d[2], b = ROOT_HALF * (d[3] - 2 * d[1]);
        const float c = d[4] - 0.5f * d[2], e = ROOT_TWO * (d[3] - 0.5f * d[1]);
        v[0] = d[0] - 2.5f * d[2] + d[4];
        v[1] = a + b;
        v[2] = a - b;
        v[3] = c + e;
        v[4] = c - e;
        v[EDGE - 1] = d[1] - 2.5f * d[3] + d[EDGE - 1];
    }
}

// One row of the transform of sums, A' m.
__device__ __forceinline__ void results_of(const float (&m)[EDGE], float (&y)[OUT])
{
    if constexpr (OUT == 2) {
        y[0] = m[0] + m[1] + m[2];
        y[1] = m[1] - m[2] - m[3];
    } else {
        const float a = m[1] + m[2], b = ROOT_HALF * (m[1] - m[2]);
        const float c = m[3] + m[4], d = ROOT_TWO * (m[3] - m[4]);
        y[0] = m[0] + a + c;
        y[1] = b + d;
        y[OUT - 2] = 0.5f * a + 2 * c;
        y[OUT - 1] = 0.5f * b + 2 * d + m[EDGE - 1];
    }
}

struct Plane {
    int images, channels, filters;
    int height, width, out_height, out_width, pad_h, pad_w;
    int tiles_h, tiles_w;
    int of_image, of_row, of_column;  // strides of the input, whose channels are contiguous
    int to_image, to_row, to_column;  // strides of what is stored, likewise
};

struct Tile {  // the position of a tile
    int image, row, column;  // of its first result

    __device__ __forceinline__ Tile(int number, const Plane& p)
    {
        column = number % p.tiles_w * OUT;
        row = number / p.tiles_w % p.tiles_h * OUT;
        image = number / p.tiles_w / p.tiles_h;
    }
};

// Reads the inputs of one channel of a tile, and zeros outside of the image.
__device__ __forceinline__ void read_tile(const float* x, const Tile& tile, int channel,
                                          const Plane& p, float (&d)[EDGE][EDGE])
{
    const bool there = channel < p.channels && tile.image < p.images;
    const int row = tile.row - p.pad_h, column = tile.column - p.pad_w;
    const float* from = x + (long long)tile.image * p.of_image + (long long)row * p.of_row
                        + (long long)column * p.of_column + channel;
#pragma unroll
    for (int a = 0; a < EDGE; ++a)
#pragma unroll
        for (int b = 0; b < EDGE; ++b) {
            const bool inside = there && (unsigned)(row + a) < (unsigned)p.height
                                && (unsigned)(column + b) < (unsigned)p.width;
            d[a][b] = inside ? from[(long long)a * p.of_row + (long long)b * p.of_column] : 0.0f;
        }
}

// Transforms a tile of inputs: B' d B.
__device__ __forceinline__ void transform_inputs(float (&d)[EDGE][EDGE])
{
#pragma unroll
    for (int a = 0; a < EDGE; ++a) {
        float v[EDGE];
        inputs_of(d[a], v);
#pragma unroll
        for (int b = 0; b < EDGE; ++b) d[a][b] = v[b];
    }
#pragma unroll
    for (int b = 0; b < EDGE; ++b) {
        float column[EDGE], v[EDGE];
#pragma unroll
        for (int a = 0; a < EDGE; ++a) column[a] = d[a][b];
        inputs_of(column, v);
#pragma unroll
        for (int a = 0; a < EDGE; ++a) d[a][b] = v[a];
    }
}

// Transforms a tile of sums, A' m A, and stores the results inside of the image, or the maxima of squares of them.
__device__ __forceinline__ void write_tile(const float (&m)[EDGE][EDGE], float* y, const Tile& tile,
                                           int channel, const float* bias, const float* z0,
                                           const float* z1, const Plane& p)
{
    float half[EDGE][OUT];
#pragma unroll
    for (int a = 0; a < EDGE; ++a) results_of(m[a], half[a]);
    const float shift = BIAS ? bias[channel] : 0.0f;
    float left[OUT];  // of a column of squares
#pragma unroll
    for (int b = 0; b < OUT; ++b) {
        float column[EDGE], out[OUT];
#pragma unroll
        for (int a = 0; a < EDGE; ++a) column[a] = half[a][b];
        results_of(column, out);
#pragma unroll
        for (int a = 0; a < OUT; ++a) {
            const int row = tile.row + a, place = tile.column + b;
            if (row >= p.out_height || place >= p.out_width) continue;
            constexpr int SIDE = POOL ? 2 : 1;
            const long long at = (long long)tile.image * p.to_image + (long long)(row / SIDE) * p.to_row
                                 + (long long)(place / SIDE) * p.to_column + channel;
            out[a] = epilogue(out[a] + shift, at, tile.image, channel, z0, z1);
            if constexpr (!POOL) y[at] = out[a];
            else if (a % 2 == 1 && b % 2 == 1) y[at] = maximum(left[a], maximum(out[a - 1], out[a]));
            else if (b % 2 == 0) left[a] = a % 2 == 0 ? out[a] : maximum(left[a - 1], out[a]);
        }
    }
}
