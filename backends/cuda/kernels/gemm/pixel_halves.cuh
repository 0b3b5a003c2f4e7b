// Tiles of windows of an image in halves (store_halves.cuh, OF_PIXELS), tap by tap: TMA brings the pixels of a tap (im2col), and
// threads their scales.
//
// Compile-time: BM, rows of a tile; POINTWISE, whether windows are single pixels, all of them; those of image_rows.cuh. Macro:
// PATCHES, whether a tile is a patch of eight pixels in each row, not adjacent results.

#include "gemm/image_rows.cuh"

struct Taps {
    int images, chunks, columns;  // images; steps of a tap; taps of a row of a window
    int of_row, of_column;        // distances of taps in pixels
    int stored;                   // pixels of the result
};

// A step of 32 channels, and its tap with row and column.
struct Tap {
    int chunk, row, column;

    __device__ __forceinline__ Tap(int step, const Taps& taps)
    {
        const int tap = step / taps.chunks;
        chunk = step - tap * taps.chunks, row = tap / taps.columns, column = tap - row * taps.columns;
    }

    __device__ __forceinline__ void next(const Taps& taps)
    {
        if (++chunk < taps.chunks) return;
        chunk = 0;
        if (++column == taps.columns) column = 0, ++row;
    }
};

// The image, and the result's row and column, of the first row of a tile.
struct Begin {
    int n, y, x;

    __device__ __forceinline__ Begin(int m0, const Image& image)
    {
        const int number = PATCHES ? m0 / BM : m0, width = PATCHES ? image.of_row : image.out_width;
        n = divide(number, image.pixels);
        const int rest = number - n * (PATCHES ? image.of_image : image.out_height * image.out_width);
        y = divide(rest, image.columns), x = rest - y * width;
        if (PATCHES) y *= BM / 8, x *= 8;
    }
};

// Where the window of the first row of a tile begins in the image.
struct Corner {
    int n, y, x;

    __device__ __forceinline__ Corner(const Begin& begin, const Image& image)
        : n(begin.n), y(begin.y * image.stride_h - image.pad_h), x(begin.x * image.stride_w - image.pad_w)
    {
    }
};

// Copies 32 channels of the pixels of a tap, in halves, for the tile that begins at row m0 of m. In tensor maps, the images of
// a step follow those of the one before.
__device__ __forceinline__ void copy_pixels(u32 to, const TensorMap* map, u32 full, const Corner& at, const Tap& tap,
                                            const Taps& taps, int m0, int m)
{
    const int down = tap.row * taps.of_row, across = tap.column * taps.of_column, n = tap.chunk * taps.images + at.n;
    if constexpr (POINTWISE) tma_load_2d(to, map, full, 0, tap.chunk * m + m0);
    else if constexpr (PATCHES) tma_load_4d(to, map, full, 0, at.x + across, at.y + down, n);
    else tma_load_im2col(to, map, full, 0, at.x, at.y, n, across, down);
}

// Where row `row` of a tile begins in the image; see `row_of`.
__device__ __forceinline__ Row row_at(const Begin& begin, int row, int m, const Image& image)
{
    if constexpr (!PATCHES) return row_of(m, m + 1, 0, image);
    const int y = begin.y + row / 8 - image.pad_h, x = begin.x + row % 8 - image.pad_w;
    return {(begin.n * image.height + y) * image.width + x, INSIDE + (u32)y + ((u32)x << 16)};
}

// The scales of the rows of a tile, which a warp copies.
struct RowScales {
    static constexpr int COPIES = (BM + 31) / 32, CHUNKS = 2;  // that have one scale
    Row rows[COPIES];

    __device__ __forceinline__ RowScales(const Begin& begin, int m0, int m, const Image& image)
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = int(threadIdx.x % 32) + i * 32;
            rows[i] = (BM % 32 == 0 || row < BM) && m0 + row < m ? row_at(begin, row, m0 + row, image) : Row{0, 0};
        }
    }

    // Copies those of a tap, from the scales of an image with so many pixels; zeros outside of it.
    __device__ __forceinline__ void copy(u32 to, const float* scales, int pixels, const Tap& tap, const Taps& taps,
                                         const Image& image) const
    {
        const u32 limit = (u32)(image.height - 1) + ((u32)image.width << COLUMN);
        const int down = tap.row * taps.of_row, across = tap.column * taps.of_column;
        const float* const from = scales + (long long)(tap.chunk / CHUNKS) * pixels + down * image.width + across;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int row = int(threadIdx.x % 32) + i * 32;
            if (BM % 32 && row >= BM) continue;
            const u32 place = rows[i].place + (u32)down + ((u32)across << COLUMN), rest = limit - place;
            const bool inside = rows[i].place && (place & rest & INSIDE) == INSIDE;
            cp_async<1>(to + row * 4, inside ? from + rows[i].offset : scales, inside);
        }
    }
};
