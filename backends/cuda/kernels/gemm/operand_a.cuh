// The rows of the left matrix of a product: rows of a matrix, pixels of an image whose channels are
// innermost, or windows of one, whose element offsets are in `table`.
//
// Compile-time: T; BM; VECTOR, the elements per copy; LOADERS, the threads that copy; those of image_rows.cuh.

#include "gemm/image_rows.cuh"
#include "gemm/singles.cuh"

struct Window {  // some neighbouring elements of a window
    int offset;   // from the element at its first corner
    u32 place;    // row, column << COLUMN, and of a volume plane << PLANE
};

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
