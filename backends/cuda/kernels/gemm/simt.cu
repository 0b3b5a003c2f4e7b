// c[m][n] = epilogue(sum over k of a[m][k] * b[k][n] + bias[n]), in plain float32 arithmetic.
//
// The rows of `a` are rows of a matrix, or windows of an image around its output pixels: then this is a
// convolution, and no im2col matrix is ever stored (implicit GEMM). Row m of that matrix is the window
// of output pixel m; the offset of its column k within the window is looked up in `table`, so that one
// kernel serves every window, dilation and layout.
//
// A block computes a tile of BM x BN results, a thread TM x TN of them in registers. cp.async copies
// tiles of `a` and `b` to shared memory, STAGES - 1 steps of BK ahead of the arithmetic.
// Small problems do not fill the GPU with tiles. Then SLICES groups of threads of a block multiply
// different terms of each step and add their sums at the end; and `splits` blocks share the sum of
// one tile (SPLIT) and write partial sums, which `gemm_reduce` adds. Both in a fixed order.
//
// Compile-time: BM BN BK TM TN STAGES SLICES; VECTOR_A and VECTOR_B, the elements per copy (1, 2, 4);
// ROWS: 0 matrix, 1 pixels (1x1 windows), 2 windows; ACROSS: whether the threads of a warp load
// along m, because pixels are adjacent in memory, not channels; BIAS; SPLIT; VECTOR_C, the elements
// per store; WIDE: whether all tiles are along x of the grid, for more tiles than y allows. A batch
// is one of several products, or a group of a convolution.

#include "gemm/neighbours.cuh"
#include "ptx/copy.cuh"
#include "ptx/pdl.cuh"

enum { MATRIX, PIXELS, WINDOWS };

constexpr int SLICE = (BM / TM) * (BN / TN);  // threads that cover a tile
constexpr int THREADS = SLICE * SLICES;
constexpr int PITCH = BK + 4;  // rows of `a` begin in different banks, 16-byte aligned
constexpr int TILE_A = BM * PITCH;
constexpr int TILE_B = BK * BN;

// Threads are ordered so that a warp covers a compact rectangle, and so reads few distinct words.
constexpr int THREADS_N = BN / TN;
constexpr int WARP_N = THREADS_N < 8 ? THREADS_N : 8;
constexpr int WARP_M = 32 / WARP_N;
constexpr int WARPS_N = THREADS_N / WARP_N;
constexpr int ROW_STEP = BM / TM;

struct Image {
    int height, width;           // of the input
    int out_height, out_width;   // of the result
    int stride_h, stride_w, pad_h, pad_w;
    int of_image, of_row, of_column;  // distances of neighbours in the input, in elements
};

struct Window {  // element k of a window
    int offset;  // from the element at its first corner
    short row, column;
};

struct Row {  // where row m of `a` begins
    const T* start;
    int row, column;  // of the window's first corner; outside of the image where it is padded
};

constexpr int OUTSIDE = -(1 << 20);

__device__ __forceinline__ Row row_of(const T* a, int m, int count, int lda, const Image& image)
{
    if (m >= count) return {a, OUTSIDE, 0};
    if constexpr (ROWS == MATRIX) return {a + (long long)m * lda, 0, 0};
    const int pixels = image.out_height * image.out_width;
    const int n = m / pixels, pixel = m - n * pixels;
    const int y = pixel / image.out_width, x = pixel - y * image.out_width;
    const int row = y * image.stride_h - image.pad_h, column = x * image.stride_w - image.pad_w;
    const long long offset = (long long)n * image.of_image + row * image.of_row
                             + column * image.of_column;
    return {a + offset, row, column};
}

// Copies the tile of `a` that begins at column k0 to shared memory, with zeros past the end.
struct LoaderA {
    static constexpr int PER_ROW = BK / VECTOR_A;
    static constexpr int COPIES = BM * PER_ROW / THREADS;  // of each thread
    static constexpr int LANES_M = ACROSS ? BM : THREADS / PER_ROW;
    static constexpr int LANES_K = ACROSS ? THREADS / BM : PER_ROW;
    static constexpr int OWN_ROWS = ACROSS ? 1 : COPIES;
    static_assert(BM * PER_ROW % THREADS == 0, "every thread copies alike");

    Row rows[OWN_ROWS];
    Window window;  // of the next tile; fetched early, because its address depends on it
    int m, k;       // of this thread's first copy

    __device__ __forceinline__ LoaderA(const T* a, int m0, int count, int lda, const Image& image)
    {
        m = ACROSS ? threadIdx.x % BM : threadIdx.x / PER_ROW;
        k = (ACROSS ? threadIdx.x / BM : threadIdx.x % PER_ROW) * VECTOR_A;
#pragma unroll
        for (int i = 0; i < OWN_ROWS; ++i)
            rows[i] = row_of(a, m0 + m + i * LANES_M, count, lda, image);
    }

    __device__ __forceinline__ void fetch(int k0, int k_end, const Window* table)
    {
        if constexpr (ROWS == WINDOWS) window = table[min(k0 + k, k_end - 1) / VECTOR_A];
    }

    __device__ __forceinline__ void copy(T* tile, int k0, int k_end, const Window* table,
                                         const Image& image)
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const Row& from = rows[ACROSS ? 0 : i];
            const int at = k + (ACROSS ? i * LANES_K * VECTOR_A : 0);
            T* target = tile + (m + (ACROSS ? 0 : i * LANES_M)) * PITCH + at;
            const int column = k0 + at;
            bool inside = column < k_end && from.row > OUTSIDE;
            const T* source = from.start + column;
            if constexpr (ROWS == WINDOWS) {
                if (ACROSS && i) fetch(k0 + i * LANES_K, k_end, table);
                inside = inside && (unsigned)(from.row + window.row) < (unsigned)image.height
                         && (unsigned)(from.column + window.column) < (unsigned)image.width;
                source = from.start + window.offset;
            }
            cp_async<VECTOR_A>(target, source, inside);
        }
        fetch(k0 + BK, k_end, table);
    }
};

struct LoaderB {
    static constexpr int PER_ROW = BN / VECTOR_B;
    static constexpr int COPIES = (BK * PER_ROW + THREADS - 1) / THREADS;

    __device__ __forceinline__ static void copy(T* tile, const T* b, int k0, int k_end, int n0,
                                                int ldb)
    {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const int item = threadIdx.x + i * THREADS;
            if (BK * PER_ROW % THREADS && item >= BK * PER_ROW) break;
            const int row = item / PER_ROW, column = item % PER_ROW * VECTOR_B;
            const bool inside = k0 + row < k_end && n0 + column < ldb;
            const T* source = b + (long long)(k0 + row) * ldb + n0 + column;
            cp_async<VECTOR_B>(tile + row * BN + column, source, inside);
        }
    }
};

// The operands of a thread: TM rows ROW_STEP apart, TN columns in groups of four.
struct Place {
    int m, n, slice;

    __device__ __forceinline__ Place()
    {
        slice = threadIdx.x / SLICE;
        const int lane = threadIdx.x % 32, warp = threadIdx.x % SLICE / 32;
        m = warp / WARPS_N * WARP_M + lane / WARP_N;
        n = (warp % WARPS_N * WARP_N + lane % WARP_N) * 4;
    }

    __device__ __forceinline__ static int column(int i) { return i / 4 * (BN / (TN / 4)) + i % 4; }
};

__device__ __forceinline__ void multiply(float (&sums)[TM][TN], const T* a, const T* b,
                                         const Place& place)
{
    a += place.slice * (BK / SLICES);
    b += place.slice * (BK / SLICES) * BN;
#pragma unroll
    for (int k = 0; k < BK / SLICES; k += 4) {
        float4 left[TM];
#pragma unroll
        for (int j = 0; j < TM; ++j)
            left[j] = *(const float4*)(a + (place.m + j * ROW_STEP) * PITCH + k);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            float right[TN];
#pragma unroll
            for (int i = 0; i < TN; i += 4)
                *(float4*)(right + i) =
                    *(const float4*)(b + (k + q) * BN + place.n + Place::column(i));
#pragma unroll
            for (int j = 0; j < TM; ++j) {
                const float value = (&left[j].x)[q];
#pragma unroll
                for (int i = 0; i < TN; ++i) sums[j][i] += value * right[i];
            }
        }
    }
}

constexpr int OWN = TM / SLICES;  // rows that a thread stores

// Adds the sums of all slices; each slice receives different rows.
__device__ __forceinline__ void add_slices(float (&own)[OWN][TN], const float (&sums)[TM][TN],
                                           T* shared, const Place& place)
{
    T* mine = shared + threadIdx.x % SLICE;
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int j = 0; j < TM; ++j)
#pragma unroll
        for (int i = 0; i < TN; ++i)
            mine[((place.slice * TM + j) * TN + i) * SLICE] = sums[j][i];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < OWN; ++j)
#pragma unroll
        for (int i = 0; i < TN; ++i) {
            const int row = place.slice * OWN + j;
            own[j][i] = mine[(row * TN + i) * SLICE];
#pragma unroll
            for (int slice = 1; slice < SLICES; ++slice)
                own[j][i] += mine[((slice * TM + row) * TN + i) * SLICE];
        }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const T* a, const T* b, R* c, const Window* table, const T* bias, const T* z0, const T* z1,
     int m, int n, int k, int lda, int ldb, int ldc, long long batch_a, long long batch_b,
     long long batch_c, int splits, Image image)
{
    extern __shared__ __align__(16) T shared[];
    const int tiles = (m + BM - 1) / BM;
    const int m0 = (WIDE ? blockIdx.x % tiles : blockIdx.x) * BM;
    const int n0 = (WIDE ? blockIdx.x / tiles : blockIdx.y) * BN;
    const int batch = blockIdx.z / splits, split = blockIdx.z - batch * splits;
    a += batch * batch_a;
    b += batch * batch_b;

    const int steps = (k + BK - 1) / BK;
    const int first = (int)((long long)steps * split / splits);
    const int count = (int)((long long)steps * (split + 1) / splits) - first;

    LoaderA loader(a, m0, m, lda, image);
    loader.fetch(first * BK, k, table);
    grid_dependency_sync();
    const auto load = [&](int step) {
        if (step < count) {
            T* tile = shared + step % STAGES * (TILE_A + TILE_B);
            loader.copy(tile, (first + step) * BK, k, table, image);
            LoaderB::copy(tile + TILE_A, b, (first + step) * BK, k, n0, ldb);
        }
        cp_async_commit();  // also an empty group, so that counting groups counts steps
    };

    float sums[TM][TN] = {};
    const Place place;
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) load(step);
    for (int step = 0; step < count; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        load(step + STAGES - 1);
        const T* tile = shared + step % STAGES * (TILE_A + TILE_B);
        multiply(sums, tile, tile + TILE_A, place);
    }

    float own[OWN][TN];
    if constexpr (SLICES == 1) {
#pragma unroll
        for (int j = 0; j < OWN; ++j)
#pragma unroll
            for (int i = 0; i < TN; ++i) own[j][i] = sums[j][i];
    } else {
        add_slices(own, sums, shared, place);
    }

    const long long plane = SPLIT ? (long long)m * n : 0;
    R* out = SPLIT ? c + blockIdx.z * plane : c + batch * batch_c;
    const int pitch = SPLIT ? n : ldc;
#pragma unroll
    for (int j = 0; j < OWN; ++j) {
        const int row = m0 + place.m + (place.slice * OWN + j) * ROW_STEP;
        if (row >= m) continue;
#pragma unroll
        for (int i = 0; i < TN; i += 4) {
            const int column = n0 + place.n + Place::column(i);
            const long long at = (long long)row * pitch + column;
            const float* values = own[j] + i;
            Neighbours<R, 4> results;
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                if constexpr (SPLIT) {
                    results.at[q] = R(values[q]);
                } else if (column + q < n) {
                    const int channel = (ROWS == MATRIX ? 0 : batch * n) + column + q;
                    const T sum = values[q] + (BIAS ? bias[channel] : T(0));
                    results.at[q] = epilogue(sum, batch * batch_c + at + q, row, channel, z0, z1);
                }
            }
            if (column < n) keep(out + at, results, n - column);
#ifdef SECOND
            if (column < n) keep((R*)SECOND + batch * batch_c + at, second_of(results), n - column);
#endif
        }
    }
}
