// Where rows of the left matrix of a product begin, which are pixels of an image or their windows: their element offsets, and
// their places, by which windows are compared with the edges.
//
// Compile-time: ROWS: 0 matrix, 1 pixels, 2 windows; POOL, whether pixels of the result come in squares of 2x2; AXES of an
// image: 2, 3 of a volume, or 1 if there is one row, so that a column may take all bits of a place.

#include "elementwise/divide.cuh"

enum { MATRIX, PIXELS, WINDOWS };

struct Image {
    int height, width;           // of the input
    int out_height, out_width;   // of the result
    int stride_h, stride_w, pad_h, pad_w;
    int of_image, of_row, of_column;  // distances of neighbours in the input, in elements
    Divisor pixels, columns;          // of the result; with POOL, the latter of squares
    int depth, out_depth, stride_d, pad_d, of_plane;  // of a volume
    Divisor plane;                                    // of the result
};

struct Row {  // where row m of `a` begins
    int offset;
    u32 place;  // of the window's first corner, likewise, with INSIDE; 0 where there is none
};

// The highest bits of two 16-bit numbers. They remain set while the numbers below them are not negative,
// so that one addition moves a row and a column, and one subtraction compares both with their limits.
// On a line, it is one number of 32 bits; in a volume, numbers of 11, 11 and 10 bits.
constexpr u32 INSIDE = AXES == 1 ? 0x80000000 : AXES == 2 ? 0x80008000 : 0x80200400;
constexpr int COLUMN = AXES == 1 ? 0 : AXES == 2 ? 16 : 11, PLANE = 22;  // their first bits

__device__ __forceinline__ Row row_of(int m, int count, int lda, const Image& image)
{
    if (m >= count) return {0, 0};
    if constexpr (ROWS == MATRIX) return {m * lda, INSIDE};
    const int plane = image.out_height * image.out_width, n = divide(m, image.pixels);
    int pixel = m - n * plane * (AXES == 3 ? image.out_depth : 1), z = 0, y, x;
    if constexpr (AXES == 3) {
        z = divide(pixel, image.plane), pixel -= z * plane;
        z = z * image.stride_d - image.pad_d;
    }
    if constexpr (POOL) {
        const int square = pixel / 4, down = divide(square, image.columns);
        y = down * 2 + pixel / 2 % 2, x = (square - down * (image.out_width / 2)) * 2 + pixel % 2;
    } else {
        y = divide(pixel, image.columns), x = pixel - y * image.out_width;
    }
    const int row = y * image.stride_h - image.pad_h, column = x * image.stride_w - image.pad_w;
    return {n * image.of_image + z * image.of_plane + row * image.of_row + column * image.of_column,
            INSIDE + (AXES == 1 ? 0 : (u32)row) + ((u32)column << COLUMN) + ((u32)z << PLANE)};
}
