// The rows of the left matrix of a product: rows of a matrix, pixels of an image whose channels are
// innermost, or windows of one, whose element offsets are in `table`.
//
// Compile-time: T; BM; ROWS: 0 matrix, 1 pixels, 2 windows; VECTOR, the elements per copy;
// LOADERS, the threads that copy; POOL, whether pixels of the result come in squares of 2x2; AXES of an image: 2, 3 of a
// volume, or 1 if there is one row, so that a column may take all bits of a place.

#include "elementwise/divide.cuh"
#include "gemm/singles.cuh"

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

struct Window {  // some neighbouring elements of a window
    int offset;   // from the element at its first corner
    u32 place;    // row, column << COLUMN, and of a volume plane << PLANE
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

// Copies tiles of `a`: BM rows of BK elements, with zeros past the end. Positions outside of an image of
// bytes read as `outside`. With ADDRESSES, a thread holds those of its rows, which takes two registers for each, so that
// little is left to compute when the preceding kernel has ended.
struct LoaderA {
    static constexpr int CHUNK = 16 / sizeof(T);
    static constexpr int PER_ROW = BK / VECTOR;
    static constexpr int LANES_M = LOADERS / PER_ROW;
    static constexpr int COPIES = BM / LANES_M;
    static_assert(BM % LANES_M == 0, "every thread copies alike");

    const T* from[ADDRESSES ? COPIES : 1];  // where each row begins for this thread, or `a`,
    int offsets[ADDRESSES ? 1 : COPIES];    // from which the rows have these distances
    u32 places[COPIES];                     // of the windows' first corners; 0 where there is none
    Window window;  // of the next tile; fetched early, because its address depends on it
    u32 limit;      // the last row and column, see `copy`
    int m, k;       // of this thread's first copy
    u32 to;         // and its place in a tile
    u32 outside = 0;  // four times the byte

    // The rows of `a` from m0 on; `thread` is the index among the threads that copy.
    __device__ __forceinline__ LoaderA(int thread, const T* a, int m0, int count, int lda, const Image& image)
    {
        m = thread / PER_ROW;
        k = thread % PER_ROW * VECTOR;
        limit = AXES == 1 ? (u32)(image.width - 1) : (u32)(image.height - 1) + ((u32)image.width << COLUMN);
        if (AXES == 3) limit += (u32)image.depth << PLANE;
        to = swizzled(m, k / CHUNK) + k % CHUNK * sizeof(T);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const Row row = row_of(m0 + m + i * LANES_M, count, lda, image);
            const int offset = row.offset + (ROWS == WINDOWS ? 0 : k);
            if constexpr (ADDRESSES) from[i] = a + offset;
            else from[0] = a, offsets[i] = offset;
            places[i] = row.place;
        }
    }

    __device__ __forceinline__ void fetch(int k0, int k_end, const Window* table)
    {
        if constexpr (ROWS == WINDOWS) window = table[(u32)min(k0 + k, k_end - 1) / VECTOR];
    }

    __device__ __forceinline__ void pin_all()
    {
        pin(to), pin(limit);
#pragma unroll
        for (const T*& row : from) pin(row);
#pragma unroll
        for (u32& place : places) pin(place);
    }

    // Copies the tile that begins at column k0, and prefetches the table entries of the next one.
    __device__ __forceinline__ void copy(u32 tile, int k0, int k_end, const Window* table)
    {
        constexpr bool SINGLE = VECTOR * sizeof(T) < 4;
        const bool is_term = k0 + k < k_end;
        Singles<SINGLE ? COPIES : 1> singles;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            bool inside = is_term && places[i];
            if constexpr (ROWS == WINDOWS) {
                const u32 place = places[i] + window.place, rest = limit - place;
                inside = is_term && (place & rest & INSIDE) == INSIDE;
            }
            // Rows whose distance is a multiple of eight are swizzled alike.
            const u32 target = tile + (LANES_M % 8 ? swizzled(m + i * LANES_M, k / CHUNK) + k % CHUNK * sizeof(T)
                                                   : to + i * LANES_M * 128);
            if constexpr (ROWS == WINDOWS && sizeof(T) == 1) {
                if (is_term && !inside) {
                    fill<VECTOR>(target, outside);
                    continue;
                }
            }
            const T* const row = ADDRESSES ? from[i] : from[0] + offsets[i];
            const T* const at = row + (ROWS == WINDOWS ? window.offset : k0);
            if constexpr (SINGLE) singles.load(i, target, at, inside);
            else cp_async<VECTOR>(target, at, inside);
        }
        if constexpr (SINGLE) singles.store();
        fetch(k0 + BK, k_end, table);
    }
};
