// The rows of the left matrix of a product: rows of a matrix, pixels of an image whose channels are
// innermost, or windows of one, whose element offsets are in `table`.
//
// Compile-time: T; BM; ROWS: 0 matrix, 1 pixels, 2 windows; VECTOR, the elements per copy;
// LOADERS, the threads that copy; POOL, whether pixels of the result come in squares of 2x2.

#include "elementwise/divide.cuh"

enum { MATRIX, PIXELS, WINDOWS };

struct Image {
    int height, width;           // of the input
    int out_height, out_width;   // of the result
    int stride_h, stride_w, pad_h, pad_w;
    int of_image, of_row, of_column;  // distances of neighbours in the input, in elements
    Divisor pixels, columns;          // of the result; with POOL, the latter of squares
};

struct Window {  // some neighbouring elements of a window
    int offset;   // from the element at its first corner
    u32 place;    // row, and column << 16
};

struct Row {  // where row m of `a` begins
    int offset;
    u32 place;  // of the window's first corner: INSIDE + row + (column << 16); 0 where there is none
};

// The highest bits of two 16-bit numbers. They remain set while the numbers below them are not negative,
// so that one addition moves a row and a column, and one subtraction compares both with their limits.
constexpr u32 INSIDE = 0x80008000;

__device__ __forceinline__ Row row_of(int m, int count, int lda, const Image& image)
{
    if (m >= count) return {0, 0};
    if constexpr (ROWS == MATRIX) return {m * lda, INSIDE};
    const int pixels = image.out_height * image.out_width;
    const int n = divide(m, image.pixels), pixel = m - n * pixels;
    int y, x;
    if constexpr (POOL) {
        const int square = pixel / 4, down = divide(square, image.columns);
        y = down * 2 + pixel / 2 % 2, x = (square - down * (image.out_width / 2)) * 2 + pixel % 2;
    } else {
        y = divide(pixel, image.columns), x = pixel - y * image.out_width;
    }
    const int row = y * image.stride_h - image.pad_h, column = x * image.stride_w - image.pad_w;
    return {n * image.of_image + row * image.of_row + column * image.of_column,
            INSIDE + (u32)row + ((u32)column << 16)};
}

// Elements of two bytes on their way to shared memory, which are too small for cp.async: all are loaded before one is
// stored.
template <int COUNT> struct Singles {
    u32 to[COUNT];
    unsigned short found[COUNT];

    __device__ __forceinline__ void load(int i, u32 target, const T* from, bool inside)
    {
        to[i] = target;
        found[i] = inside ? *(const unsigned short*)from : (unsigned short)0;
    }

    __device__ __forceinline__ void store() const
    {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) keep_single(to[i], found[i]);
    }
};

// Copies tiles of `a`: BM rows of BK elements, with zeros past the end. Positions outside of an image of
// bytes read as `outside`.
struct LoaderA {
    static constexpr int CHUNK = 16 / sizeof(T);
    static constexpr int PER_ROW = BK / VECTOR;
    static constexpr int LANES_M = LOADERS / PER_ROW;
    static constexpr int COPIES = BM / LANES_M;
    static_assert(BM % LANES_M == 0, "every thread copies alike");

    Row rows[COPIES];
    Window window;  // of the next tile; fetched early, because its address depends on it
    u32 limit;      // the last row and column, see `copy`
    int m, k;       // of this thread's first copy
    u32 outside = 0;  // four times the byte

    // The rows from m0 on; `thread` is the index among the threads that copy.
    __device__ __forceinline__ LoaderA(int thread, int m0, int count, int lda, const Image& image)
    {
        m = thread / PER_ROW;
        k = thread % PER_ROW * VECTOR;
        limit = (u32)(image.height - 1) + ((u32)image.width << 16);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) rows[i] = row_of(m0 + m + i * LANES_M, count, lda, image);
    }

    __device__ __forceinline__ void fetch(int k0, int k_end, const Window* table)
    {
        if constexpr (ROWS == WINDOWS) window = table[min(k0 + k, k_end - 1) / VECTOR];
    }

    // Copies the tile that begins at column k0, and prefetches the table entries of the next one.
    __device__ __forceinline__ void copy(u32 tile, const T* a, int k0, int k_end,
                                         const Window* table)
    {
        constexpr bool SINGLE = VECTOR * sizeof(T) < 4;
        const bool is_term = k0 + k < k_end;
        const int offset = ROWS == WINDOWS ? window.offset : k0 + k;
        Singles<SINGLE ? COPIES : 1> singles;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            bool inside = is_term && rows[i].place;
            if constexpr (ROWS == WINDOWS) {
                const u32 place = rows[i].place + window.place, rest = limit - place;
                inside = is_term && (place & rest & INSIDE) == INSIDE;
            }
            // Rows whose distance is a multiple of eight are swizzled alike.
            const u32 to = LANES_M % 8 ? swizzled(m + i * LANES_M, k / CHUNK)
                                       : swizzled(m, k / CHUNK) + i * LANES_M * 128;
            const u32 target = tile + to + k % CHUNK * sizeof(T);
            if constexpr (ROWS == WINDOWS && sizeof(T) == 1) {
                if (is_term && !inside) {
                    fill<VECTOR>(target, outside);
                    continue;
                }
            }
            if constexpr (SINGLE) singles.load(i, target, a + rows[i].offset + offset, inside);
            else cp_async<VECTOR>(target, a + rows[i].offset + offset, inside);
        }
        if constexpr (SINGLE) singles.store();
        fetch(k0 + BK, k_end, table);
    }
};
