// An inverted residual as one kernel: a 1x1 convolution that expands the channels, a depthwise convolution, and a 1x1
// convolution that projects them. Tensors in between never leave the multiprocessor.
//
// A block computes TILE_H x TILE_W pixels of the result. It keeps the part of the image that their windows read, and takes
// CHUNK of the expanded channels at a time: it expands the pixels, and stores them in the box that the windows cover, which
// stays zero outside; filters them; and projects these results, which are where the left operand of mma.sync must be. While
// one chunk is filtered and projected, the next one is expanded, and weights of those behind arrive. Warps have RUN bands of
// 16 pixels each, and part of a chunk. Both intermediate tensors are rounded to T, as if they were stored. residual_16_bits.cuh
// and residual_f16x3.cuh have the arithmetic.
//
// `weights` is stored chunk by chunk in the order of shared memory, see pack_residual.py. Without EXPANDS the image itself is
// what the depthwise convolution reads; without PROJECTS its results are stored, as for squeeze-and-excite. SPLIT blocks share
// the chunks; those that project are a cluster, and send their sums to each other; see inbox.cuh.
//
// With UNFOLDED the expansion is the first layer of a network: its terms are those of a window of the image, whose channels
// are not last, and of type S. A thread unfolds all terms of a pixel.
//
// Compile-time: S, T; Z and R as in epilogue.cuh; EXPANDS; PROJECTS; UNFOLDED, the channels of a first layer's image, or 0;
// FIRST_H FIRST_W FIRST_STEP_H FIRST_STEP_W, its windows; TERMS, of the expansion in sixteens; CHUNK; GROUP, the
// columns of it that a warp expands at once; PARTS, of a chunk; RUN, bands of a warp, one unless ROLLS; ROLLS, whether
// pixels are loaded once for all windows; COLUMNS, the channels of the result in sixteens; KH KW; STEP_H STEP_W; TILE_H TILE_W;
// SPLIT; RESIDENT; BIAS Z0 Z1 VECTOR_C. Generated: `expanded::epilogue` and `filtered::epilogue`.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
#include "gemm/inbox.cuh"
#if F16X3
#include "gemm/halves.cuh"
#include "gemm/cut_rows.cuh"
#endif

// A band of 16 pixels is a line of the tile, or two lines of eight; some of its pixels may be outside.
constexpr int LINE = TILE_W > 8 ? 16 : 8, LINES = 16 / LINE, BANDS = (TILE_H + LINES - 1) / LINES, ROWS_OUT = BANDS * 16;
constexpr int RUNS = (BANDS + RUN - 1) / RUN, WARPS = RUNS * PARTS, THREADS = 32 * WARPS;
constexpr int BOX_H = (TILE_H - 1) * STEP_H + KH, BOX_W = (TILE_W - 1) * STEP_W + KW;  // what the windows cover
constexpr int ROWS_IN = (BOX_H * BOX_W + 15) / 16 * 16;
constexpr int STEPS = CHUNK / 16 / PARTS, TN = COLUMNS / 8;
constexpr int IN_WORD = 16 / sizeof(T);  // elements
// Rows are an odd number of words of 16 bytes apart, so that eight of them are in different banks.
__device__ constexpr int pitch(int elements) { return (elements / IN_WORD | 1) * 16; }
constexpr int PITCH_IN = pitch(TERMS), PITCH = pitch(CHUNK);
constexpr int WIDTH = COLUMNS + 8, WORDS = COLUMNS / 8;  // of a row of sums
static_assert(CHUNK % (16 * PARTS) == 0 && CHUNK % GROUP == 0 && GROUP % 16 == 0 && COLUMNS % 16 == 0, "");

#include "conv/residual_plane.cuh"

struct alignas(16) Word {
    u32 at[4];
};

#if F16X3
#include "conv/residual_f16x3.cuh"
#else
#include "conv/residual_16_bits.cuh"
#endif

// The layout of shared memory, with two buffers for what changes from chunk to chunk. Sums take the place of weights.
constexpr int BOX = BOX_H * BOX_W * PITCH_BOX, HIDDEN = EXPANDS ? ROWS_IN * PITCH_IN : 0;
constexpr int EXPANSION = HIDDEN + 2 * BOX, PROJECTION = EXPANSION + 2 * FIRST, PLACES = PROJECTION + 2 * SECOND;
constexpr int OF_PART = ROWS_OUT * WIDTH;  // floats
constexpr int STAGES = PLACES + 8 * ROWS_IN, SUMS = PARTS > 1 || SPLIT == 1 ? PARTS * OF_PART * 4 : 0;
constexpr int SCALES = ((STAGES > SUMS ? STAGES : SUMS) + 15) / 16 * 16, INBOX = SCALES + (F16X3 && PROJECTS ? COLUMNS * 4 : 0);

// Stores the terms of the window that begins at (row, column) of an image.
__device__ __forceinline__ void unfold(unsigned char* to, const S* from, const Source& source, int row, int column)
{
    alignas(16) T terms[TERMS] = {};
#pragma unroll
    for (int channel = 0; channel < UNFOLDED; ++channel)
#pragma unroll
        for (int r = 0; r < FIRST_H; ++r)
#pragma unroll
            for (int s = 0; s < FIRST_W; ++s) {
                const int y = row + r, x = column + s;
                if ((u32)y < (u32)source.height && (u32)x < (u32)source.width)
                    terms[(channel * FIRST_H + r) * FIRST_W + s] = T(from[(channel * source.height + y) * source.width + x]);
            }
#pragma unroll
    for (int word = 0; word < TERMS / IN_WORD; ++word) ((Word*)to)[word] = ((const Word*)terms)[word];
}

template <int BYTES> __device__ __forceinline__ void load(u32 to, const unsigned char* from)
{
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) cp_async<IN_WORD>(to + i, (const T*)(from + i), true);
}

// Returns four adjacent sums of all parts of a chunk.
__device__ __forceinline__ float4 sum_of_parts(const float* from)
{
    float4 sum = *(const float4*)from;
#pragma unroll
    for (int part = 1; part < PARTS; ++part) {
        const float4 found = *(const float4*)(from + part * OF_PART);
        sum.x += found.x, sum.y += found.y, sum.z += found.z, sum.w += found.w;
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
inverted_residual(const S* x, const T* weights, R* y, const T* bias, const T* z0, const T* z1, Plane p, Source source)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = warp % RUNS, part = warp / RUNS;
    const int tile = in_order(blockIdx.x, gridDim.x), split = blockIdx.y;
    const int across = tile % p.across, down = tile / p.across % p.down, n = tile / p.across / p.down;
    const int row0 = down * TILE_H, column0 = across * TILE_W;
    const int top = row0 * STEP_H - p.pad_h, left = column0 * STEP_W - p.pad_w;
    // The pixels of the image that the windows cover.
    const int first_row = max(top, 0), first_column = max(left, 0);
    const int rows = max(min(top + BOX_H, p.height) - first_row, 0);
    const int columns = max(min(left + BOX_W, p.width) - first_column, 0), count = rows * columns;
    const int begin = p.chunks * split / SPLIT, end = p.chunks * (split + 1) / SPLIT;
    const u32 base = shared_address(shared);
    int *const places = (int*)(shared + PLACES), *const pixels = places + ROWS_IN;

    const auto load_first = [&](int chunk) {
        const unsigned char* from = (const unsigned char*)weights + (long long)chunk * (FIRST + SECOND);
        if (EXPANDS && chunk < end) load<FIRST>(base + EXPANSION + (chunk - begin) % 2 * FIRST, from);
    };
    const auto load_second = [&](int chunk) {
        const unsigned char* from = (const unsigned char*)weights + (long long)chunk * (FIRST + SECOND) + FIRST;
        if (chunk < end) load<SECOND>(base + PROJECTION + (chunk - begin) % 2 * SECOND, from);
    };
    const T* image = (const T*)x + (long long)n * p.height * p.width * p.row_x;
    const auto load_hidden = [&](int chunk) {  // of the image itself
        constexpr int WORDS = CHUNK / IN_WORD;
        if (EXPANDS || chunk >= end) return;
        for (int i = threadIdx.x; i < count * WORDS; i += THREADS) {
            const int row = i / WORDS, word = i % WORDS, channel = chunk * CHUNK + word * IN_WORD;
            const bool inside = channel < p.channels;
            cp_async<IN_WORD>(base + HIDDEN + (chunk - begin) % 2 * BOX + places[row] + word * 16,
                        image + (inside ? (long long)pixels[row] * p.row_x + channel : 0), inside);
        }
    };

    const Inbox<ROWS_OUT, WORDS> inbox(shared + INBOX, split, SPLIT);
    if constexpr (SPLIT > 1 && PROJECTS) inbox.open();
    load_first(begin);
    load_second(begin);
    if constexpr (F16X3 && PROJECTS)
        load<COLUMNS * 4>(base + SCALES, (const unsigned char*)weights + (long long)p.chunks * (FIRST + SECOND));
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int row = i / columns, column = i - row * columns;
        places[i] = ((first_row - top + row) * BOX_W + place_in_row(first_column - left + column)) * PITCH_BOX;
        pixels[i] = (first_row + row) * p.width + first_column + column;
    }
    // Pixels outside of the image stay zero.
    if (count < BOX_H * BOX_W)
        for (int i = threadIdx.x; i < BOX_H * BOX_W; i += THREADS) {
            const int row = top + i / BOX_W, column = left + i % BOX_W;
            if ((u32)row < (u32)p.height && (u32)column < (u32)p.width) continue;
            const int place = (i / BOX_W * BOX_W + place_in_row(i % BOX_W)) * PITCH_BOX;
#pragma unroll
            for (int word = 0; word < PITCH_BOX; word += 16) {
                fill<16>(base + HIDDEN + place + word, 0);
                fill<16>(base + HIDDEN + BOX + place + word, 0);
            }
        }
    __syncthreads();
    grid_dependency_sync();
    if constexpr (UNFOLDED > 0) {
        const S* from = x + (long long)n * UNFOLDED * source.height * source.width;
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const int row = i / columns, column = i - row * columns;
            unfold(shared + i * PITCH_IN, from, source, (first_row + row) * FIRST_STEP_H - source.pad_h,
                   (first_column + column) * FIRST_STEP_W - source.pad_w);
        }
    } else if constexpr (EXPANDS) {
        // Eight threads copy a row if they cut it, and zeros behind the last row of these.
        constexpr int WORDS = TERMS / IN_WORD, OF_ROW = F16X3 ? 8 : WORDS;
        const int there = F16X3 ? (count + 3) / 4 * 4 : count;
        for (int i = threadIdx.x; i < there * OF_ROW; i += THREADS) {
            const int row = i / OF_ROW;
#pragma unroll
            for (int first = 0; first < WORDS; first += OF_ROW) {
                const int word = first + i % OF_ROW;
                if (WORDS % OF_ROW && word >= WORDS) break;
                const bool inside = word * IN_WORD < p.channels && (!F16X3 || row < count);
                cp_async<IN_WORD>(base + row * PITCH_IN + word * 16,
                                  image + (inside ? (long long)pixels[row] * p.row_x + word * IN_WORD : 0), inside);
            }
        }
    }
    cp_async_commit();
    load_hidden(begin);
    load_first(begin + 1);
    cp_async_commit();
    cp_async_wait<1>();
#if F16X3
    __syncwarp();
    if constexpr (EXPANDS) cut_image(shared, count);
#endif
    __syncthreads();
    if (EXPANDS && begin < end) expand(shared, places, HIDDEN, EXPANSION, count);
    cp_async_wait<0>();
    __syncthreads();

    // Where pixel `m` of the bands is in the result; -1 outside.
    const auto place_of = [&](int m) {
        const int of_tile = m / LINE, row = row0 + of_tile, column = column0 + m % LINE;
        const bool inside = of_tile < TILE_H && m % LINE < TILE_W && row < p.out_height && column < p.out_width;
        return inside ? (n * p.out_height + row) * p.out_width + column : -1;
    };
    const Results results(y, p, place_of, run);
    float sums[RUN][TN][4] = {};
    const Windows windows(base + HIDDEN, shared + HIDDEN, run);
    const u32 rows_of_b = base + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    for (int chunk = begin; chunk < end; ++chunk) {
        const int half = (chunk - begin) % 2;
        load_first(chunk + 2);
        load_second(chunk + 1);
        load_hidden(chunk + 1);
        cp_async_commit();
        if (EXPANDS && chunk + 1 < end)
            expand(shared, places, HIDDEN + (1 - half) * BOX, EXPANSION + (1 - half) * FIRST, count);
        filter_chunk(sums, shared, windows, rows_of_b, half * BOX, PROJECTION + half * SECOND, part, chunk, results);
        cp_async_wait<0>();
        __syncthreads();
    }

    if constexpr (!PROJECTS) return;
#if F16X3
    scale(sums[0], shared + SCALES);
#endif
    // The sums of all parts of a chunk go where weights were, side by side; those of a single part leave as they are.
    constexpr bool SENT = SPLIT > 1 && PARTS == 1;
    if constexpr (SPLIT > 1) inbox.wait_open();
    float* const own = (float*)shared + part * OF_PART + (run * RUN * 16 + lane / 4) * WIDTH + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2 * RUN; ++i) {
        const int band = run * RUN + i / 2;
        if (BANDS % RUN && band >= BANDS) break;
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const float* const of = sums[i / 2][j] + i % 2 * 2;
            const float2 pair = make_float2(of[0], of[1]);
            if constexpr (SENT) inbox.send(band * 16 + lane / 4 + i % 2 * 8, j, lane % 4 * 2, pair);
            else *(float2*)(own + i * 8 * WIDTH + j * 8) = pair;
        }
    }
    if constexpr (!SENT) __syncthreads();
    if constexpr (SPLIT > 1 && !SENT)
        for (int i = threadIdx.x; i < ROWS_OUT * (COLUMNS / 4); i += THREADS) {
            const int row = i / (COLUMNS / 4), column = i % (COLUMNS / 4) * 4;
            inbox.send(row, column / 8, column % 8, sum_of_parts((const float*)shared + row * WIDTH + column));
        }
    if constexpr (SPLIT > 1) inbox.wait_received();  // also without items: others send to this memory
    const int first = SPLIT > 1 ? inbox.begin() : 0, last = SPLIT > 1 ? inbox.end() : ROWS_OUT * WORDS;
    for (int item = first + threadIdx.x; item < last; item += THREADS) {
        const int m = item / WORDS, column = item % WORDS * 8, place = place_of(m);
        if (place < 0 || column >= p.filters) continue;
        const long long at = (long long)place * p.row_y + column;
        const Operands<8> with = operands_at<8>(at, place, column, 8, bias, z0, z1);
        float values[8];
        if constexpr (SPLIT > 1) {
            inbox.add(values, item);
        } else {
            *(float4*)values = sum_of_parts((const float*)shared + m * WIDTH + column);
            *(float4*)(values + 4) = sum_of_parts((const float*)shared + m * WIDTH + column + 4);
        }
        epilogue_all(y, values, with, at, 8);
    }
}
