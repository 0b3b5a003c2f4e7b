// An inverted residual of 16-bit floats as one kernel: a 1x1 convolution that expands the channels, a depthwise
// convolution, and a 1x1 convolution that projects them. What lies in between never leaves the multiprocessor.
//
// A block computes TILE_H x TILE_W pixels of the result. It keeps the part of the image that their windows read, and
// takes CHUNK of the expanded channels at a time. All products are those of tensor cores (mma.sync), with sums in float32:
//
// expand    multiplies pixels of the image, and stores them in the box that the windows cover, which stays zero outside.
// filter    multiplies 16 pixels of eight channels with diagonal matrices: two elements of the windows at a time, of which
//           each has 8 x 8 weights. The rows that ldmatrix loads are those pixels, displaced. An infinity turns
//           seven neighbouring channels into NaN.
// project   multiplies these results, which are where the left operand of mma.sync must be, with the last weights.
//
// While one chunk is filtered and projected, the next one is expanded, and weights of those behind arrive. Both
// intermediate tensors are rounded to T, as if they were stored. Warps have a band of 16 pixels each, and part of a chunk.
//
// `weights` is stored chunk by chunk in the order of shared memory, see pack_residual.py. Without EXPANDS the image itself is
// what the depthwise convolution reads; without PROJECTS its results are stored, as for squeeze-and-excite. SPLIT blocks share
// the chunks; those that project are a cluster, and send their sums to each other; see inbox.cuh.
//
// Compile-time: T; Z and R as in epilogue.cuh; EXPANDS; PROJECTS; TERMS, the channels of the image in sixteens; CHUNK; GROUP, the
// columns of it that a warp expands at once; PARTS, of a chunk; COLUMNS, the channels of the result in sixteens; KH KW; STEP_H
// STEP_W; TILE_H TILE_W; SPLIT; RESIDENT; BIAS Z0 Z1 VECTOR_C. Generated: `expanded::epilogue` and `filtered::epilogue`.

#include "ptx/pdl.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
#include "gemm/inbox.cuh"

constexpr int ROWS_OUT = (TILE_H * TILE_W + 15) / 16 * 16, BANDS = ROWS_OUT / 16;
constexpr int WARPS = BANDS * PARTS, THREADS = 32 * WARPS;
constexpr int BOX_H = (TILE_H - 1) * STEP_H + KH, BOX_W = (TILE_W - 1) * STEP_W + KW;  // what the windows cover
constexpr int ROWS_IN = (BOX_H * BOX_W + 15) / 16 * 16;
constexpr int STEPS = CHUNK / 16 / PARTS, TN = COLUMNS / 8;
// Pairs of elements of a window: of two rows, and of one where their number is odd; the last one may be alone.
constexpr int PAIRS = KH / 2 * KW + KH % 2 * ((KW + 1) / 2);
// Rows are an odd number of words of 16 bytes apart, so that eight of them lie in different banks.
__device__ constexpr int pitch(int elements) { return (elements / 8 | 1) * 16; }
constexpr int PITCH_IN = pitch(TERMS), PITCH = pitch(CHUNK);
// The weights of a chunk in bytes: of the expansion with a bias; of the projection and the windows with a bias.
constexpr int BIAS_IN = CHUNK * PITCH_IN, FIRST = EXPANDS ? BIAS_IN + CHUNK * 4 : 0;
constexpr int WINDOW = PROJECTS ? COLUMNS * PITCH : 0, BIAS_OUT = WINDOW + PAIRS * CHUNK * 8, SECOND = BIAS_OUT + CHUNK * 4;
// Where everything lies in shared memory, twice what changes from chunk to chunk.
constexpr int BOX = BOX_H * BOX_W * PITCH, HIDDEN = EXPANDS ? ROWS_IN * PITCH_IN : 0;
constexpr int EXPANSION = HIDDEN + 2 * BOX, PROJECTION = EXPANSION + 2 * FIRST, PLACES = PROJECTION + 2 * SECOND;
constexpr int WIDTH = COLUMNS + 8, WORDS = COLUMNS / 8;  // of a row of sums
static_assert(CHUNK % (16 * PARTS) == 0 && CHUNK % GROUP == 0 && GROUP % 16 == 0 && COLUMNS % 16 == 0, "");

struct Plane {
    int channels, filters;  // of the image and the result
    int height, width, out_height, out_width, pad_h, pad_w;
    int row_x, row_y;   // elements from one pixel to the next
    int down, across;   // tiles of an image
    int chunks;
};

struct alignas(4) Pair {
    T at[2];
};

struct alignas(16) Word {
    u32 at[4];
};

struct alignas(8) Weights {  // of a pair of elements of a window: the upper half of each for odd channels
    u32 first, second;
};

__device__ __forceinline__ u32 bits_of(const T& first, const T& second)
{
    const Pair pair = {{first, second}};
    return *(const u32*)&pair;
}

template <int BYTES> __device__ __forceinline__ void load(u32 to, const unsigned char* from)
{
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) cp_async<8>(to + i, (const T*)(from + i), true);
}

// Multiplies 16 rows, which are fragments, with COUNT * 8 rows of 16 elements at `b`.
template <int COUNT, int PITCH_OF>
__device__ __forceinline__ void multiply(float (&sums)[COUNT][4], const u32 (&left)[4], u32 b)
{
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        u32 right[4];
        ldmatrix_x4(right, b + j * 8 * PITCH_OF);
        MMA(sums[j], left, right[0], right[1]);
        MMA(sums[j + 1], left, right[2], right[3]);
    }
}

// Expands the pixels of the image in shared memory; `places` says where in the box each is.
__device__ __forceinline__ void expand(unsigned char* shared, int box, int weights, int count)
{
    constexpr int GROUPS = CHUNK / GROUP;
    const int lane = threadIdx.x % 32, bands = (count + 15) / 16;
    const int* places = (const int*)(shared + PLACES);
    const u32 base = shared_address(shared);
    for (int item = threadIdx.x / 32; item < bands * GROUPS; item += WARPS) {
        const int band = item / GROUPS, first = item % GROUPS * GROUP;
        const float* bias = (const float*)(shared + weights + BIAS_IN) + first + lane % 4 * 2;
        float sums[GROUP / 8][4];
#pragma unroll
        for (int j = 0; j < GROUP / 8; ++j) {
            const float2 shift = *(const float2*)(bias + j * 8);
            sums[j][0] = sums[j][2] = shift.x, sums[j][1] = sums[j][3] = shift.y;
        }
        const u32 a = base + (band * 16 + lane % 16) * PITCH_IN + lane / 16 * 16;
        const u32 b = base + weights + (first + lane % 8 + lane / 16 * 8) * PITCH_IN + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < TERMS / 16; ++k) {
            u32 left[4];
            ldmatrix_x4(left, a + k * 32);
            multiply<GROUP / 8, PITCH_IN>(sums, left, b + k * 32);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = band * 16 + lane / 4 + half * 8;
            if (row >= count) continue;
            unsigned char* const to = shared + box + places[row] + (first + lane % 4 * 2) * 2;
#pragma unroll
            for (int j = 0; j < GROUP / 8; ++j)
                *(u32*)(to + j * 16) =
                    bits_of(expanded::epilogue(sums[j][2 * half], 0, 0, 0, nullptr, nullptr),
                            expanded::epilogue(sums[j][2 * half + 1], 0, 0, 0, nullptr, nullptr));
        }
    }
}

// Where the windows of a lane's pixel begin in a box: ldmatrix reads the first element of a pair for lanes below 16, and
// the second one for the others, which is in the next row, in the next column, or the same.
struct Windows {
    u32 below, beside, alone;

    __device__ __forceinline__ Windows(u32 boxes, int band)
    {
        const int lane = threadIdx.x % 32, pixel = min(band * 16 + lane % 16, TILE_H * TILE_W - 1);
        alone = boxes + (pixel / TILE_W * STEP_H * BOX_W + pixel % TILE_W * STEP_W) * PITCH;
        below = alone + lane / 16 * BOX_W * PITCH, beside = alone + lane / 16 * PITCH;
    }
};

// The depthwise convolution of 16 pixels and eight channels, which are `offset` bytes behind the box, by weights at `by`.
__device__ __forceinline__ void filter(float (&sums)[4], const Windows& windows, int offset, const unsigned char* by)
{
    const int lane = threadIdx.x % 32;
    const u32 own = lane / 8 == lane % 4 ? ~0u : 0;  // of the diagonal
    const auto step = [&](int pair, u32 at) {
        u32 pixels[4];
        ldmatrix_x4(pixels, at + offset);
        const Weights weight = *(const Weights*)(by + (pair * CHUNK + lane / 4) * 8);
        MMA(sums, pixels, weight.first & own, weight.second & own);
    };
#pragma unroll
    for (int r = 0; r + 1 < KH; r += 2)
#pragma unroll
        for (int s = 0; s < KW; ++s) step(r / 2 * KW + s, windows.below + (r * BOX_W + s) * PITCH);
    if constexpr (KH % 2) {
#pragma unroll
        for (int s = 0; s < KW; s += 2)
            step(KH / 2 * KW + s / 2, (s + 1 < KW ? windows.beside : windows.alone) + ((KH - 1) * BOX_W + s) * PITCH);
    }
}

// Four adjacent threads have two channels each of four items; afterwards each has all eight channels of one item.
__device__ __forceinline__ Word gathered(const u32 (&items)[4])
{
    const int lane = threadIdx.x % 32;
    Word found = {{items[0], items[1], items[2], items[3]}};
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            u32 &low = found.at[bit == 1 ? 2 * t : t], &high = found.at[bit == 1 ? 2 * t + 1 : t + 2];
            const u32 got = __shfl_xor_sync(~0u, lane & bit ? low : high, bit);
            if (lane & bit) low = got;
            else high = got;
        }
    return found;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
inverted_residual(const T* x, const T* weights, R* y, const T* bias, const T* z0, const T* z1, Plane p)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, band = warp % BANDS, part = warp / BANDS;
    const int tile = blockIdx.x, split = blockIdx.y;
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
    const T* image = x + (long long)n * p.height * p.width * p.row_x;
    const auto load_hidden = [&](int chunk) {  // of the image itself
        constexpr int WORDS = CHUNK / 8;
        if (EXPANDS || chunk >= end) return;
        for (int i = threadIdx.x; i < count * WORDS; i += THREADS) {
            const int row = i / WORDS, word = i % WORDS, channel = chunk * CHUNK + word * 8;
            const bool inside = channel < p.channels;
            cp_async<8>(base + HIDDEN + (chunk - begin) % 2 * BOX + places[row] + word * 16,
                        image + (inside ? (long long)pixels[row] * p.row_x + channel : 0), inside);
        }
    };

    constexpr int STAGES = PLACES + 8 * ROWS_IN, SUMS = PARTS > 1 || SPLIT == 1 ? ROWS_OUT * WIDTH * 4 : 0;
    const Inbox<ROWS_OUT, WORDS> inbox(shared + ((STAGES > SUMS ? STAGES : SUMS) + 15) / 16 * 16, split, SPLIT);
    if constexpr (SPLIT > 1 && PROJECTS) inbox.open();
    load_first(begin);
    load_second(begin);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int row = i / columns, column = i - row * columns;
        places[i] = ((first_row - top + row) * BOX_W + first_column - left + column) * PITCH;
        pixels[i] = (first_row + row) * p.width + first_column + column;
    }
    // Pixels outside of the image stay zero.
    if (count < BOX_H * BOX_W)
        for (int i = threadIdx.x; i < BOX_H * BOX_W; i += THREADS) {
            const int row = top + i / BOX_W, column = left + i % BOX_W;
            if ((u32)row < (u32)p.height && (u32)column < (u32)p.width) continue;
#pragma unroll
            for (int word = 0; word < PITCH; word += 16) {
                fill<16>(base + HIDDEN + i * PITCH + word, 0);
                fill<16>(base + HIDDEN + BOX + i * PITCH + word, 0);
            }
        }
    __syncthreads();
    grid_dependency_sync();
    if constexpr (EXPANDS) {
        constexpr int WORDS = TERMS / 8;
        for (int i = threadIdx.x; i < count * WORDS; i += THREADS) {
            const int row = i / WORDS, word = i % WORDS;
            const bool inside = word * 8 < p.channels;
            cp_async<8>(base + row * PITCH_IN + word * 16,
                        image + (inside ? (long long)pixels[row] * p.row_x + word * 8 : 0), inside);
        }
    }
    cp_async_commit();
    load_hidden(begin);
    load_first(begin + 1);
    cp_async_commit();
    cp_async_wait<1>();
    __syncthreads();
    if (EXPANDS && begin < end) expand(shared, HIDDEN, EXPANSION, count);
    cp_async_wait<0>();
    __syncthreads();

    // Where pixel `m` of the tile is in the result; -1 outside.
    const auto place_of = [&](int m) {
        const int row = row0 + m / TILE_W, column = column0 + m % TILE_W;
        const bool inside = m < TILE_H * TILE_W && row < p.out_height && column < p.out_width;
        return inside ? (n * p.out_height + row) * p.out_width + column : -1;
    };
    const int own_place = place_of(band * 16 + lane / 4 + lane % 2 * 8);
    float sums[TN][4] = {};
    const Windows windows(base + HIDDEN, band);
    const u32 rows_of_b = base + PROJECTION + (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    for (int chunk = begin; chunk < end; ++chunk) {
        const int turn = (chunk - begin) % 2;
        load_first(chunk + 2);
        load_second(chunk + 1);
        load_hidden(chunk + 1);
        cp_async_commit();
        if (EXPANDS && chunk + 1 < end)
            expand(shared, HIDDEN + (1 - turn) * BOX, EXPANSION + (1 - turn) * FIRST, count);
        const unsigned char* own = shared + PROJECTION + turn * SECOND;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            u32 fragment[4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int word = ((part * STEPS + step) * 2 + half) * 16;
                const float2 shift = *(const float2*)(own + BIAS_OUT + word * 2 + lane % 4 * 8);
                float found[4] = {shift.x, shift.y, shift.x, shift.y};
                filter(found, windows, turn * BOX + word, own + WINDOW + word * 4);
#pragma unroll
                for (int row = 0; row < 2; ++row)
                    fragment[half * 2 + row] =
                        bits_of(filtered::epilogue(found[row * 2], 0, 0, 0, nullptr, nullptr),
                                filtered::epilogue(found[row * 2 + 1], 0, 0, 0, nullptr, nullptr));
            }
            if constexpr (PROJECTS) {
                multiply<TN, PITCH>(sums, fragment, rows_of_b + turn * SECOND + (part * STEPS + step) * 32);
            } else {
                const Word word = gathered(fragment);
                const int channel = chunk * CHUNK + (part * STEPS + step) * 16 + lane % 4 / 2 * 8;
                if (own_place >= 0 && channel < p.filters)
                    *(Word*)(y + (long long)own_place * p.row_y + channel) = word;
            }
        }
        cp_async_wait<0>();
        __syncthreads();
    }

    if constexpr (!PROJECTS) return;
    // The sums of all parts of a chunk, one after the other, where weights were. Of a cluster, the last part sends them.
    if constexpr (SPLIT > 1) inbox.wait_open();
    float* const mine = (float*)shared + (band * 16 + lane / 4) * WIDTH + lane % 4 * 2;
#pragma unroll
    for (int turn = 0; turn < PARTS; ++turn) {
        if (part == turn)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float2* const to = (float2*)(mine + half * 8 * WIDTH + j * 8);
                    const float2 before = turn ? *to : make_float2(0, 0);
                    const float2 sum = make_float2(sums[j][half * 2] + before.x, sums[j][half * 2 + 1] + before.y);
                    if (SPLIT > 1 && turn + 1 == PARTS)
                        inbox.send(band * 16 + lane / 4 + half * 8, j, lane % 4 * 2, sum);
                    else
                        *to = sum;
                }
        if (SPLIT == 1 || turn + 1 < PARTS) __syncthreads();
    }
    if constexpr (SPLIT > 1) inbox.wait_received();  // also without items: others send to this memory
    const int first = SPLIT > 1 ? inbox.begin() : 0, last = SPLIT > 1 ? inbox.end() : TILE_H * TILE_W * WORDS;
    for (int item = first + threadIdx.x; item < last; item += THREADS) {
        const int m = item / WORDS, column = item % WORDS * 8, place = place_of(m);
        if (place < 0 || column >= p.filters) continue;
        const long long at = (long long)place * p.row_y + column;
        const Operands<8> with = operands_at<8>(at, place, column, 8, bias, z0, z1);
        float values[8];
        if constexpr (SPLIT > 1) {
            inbox.add(values, item);
        } else {
            *(float4*)values = *(const float4*)((float*)shared + m * WIDTH + column);
            *(float4*)(values + 4) = *(const float4*)((float*)shared + m * WIDTH + column + 4);
        }
        epilogue_all(y, values, with, at, 8);
    }
}
