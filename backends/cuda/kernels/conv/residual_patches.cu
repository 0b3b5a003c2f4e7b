// An inverted residual of 16-bit floats as one kernel, like inverted_residual.cu, whose expanded pixels stay in registers.
//
// A block computes tiles of DOWN x ACROSS patches of PATCH_H x PATCH_W pixels of the result. It keeps all weights in shared
// memory, and the part of the image that the windows of a tile read. It takes CHUNK of the expanded channels at a time:
//
// walk     A warp has 16 channels of four patches, a lane two channels of one. It walks down its patch, two rows of pixels at
//          a time: mma.sync expands a column of both rows, of which each lane gets its own channels, and the lane adds them
//          to the sums of all windows that they are in, in float32. Rows of finished sums go to shared memory.
// project  multiplies these by the weights of the projection, while the part of the image for the next tile arrives.
//
// `weights` is stored chunk by chunk in the order of shared memory, see residual_patches.py. Without EXPANDS the image itself
// is what the depthwise convolution reads.
//
// With UNFOLDED the expansion is the first layer of a network, whose windows are two columns apart. Pixels of its image have
// four channels in shared memory, so that two are a word of 16 bytes, and SPAN_FIRST of a row, a multiple of four, are the
// terms of a row of a window, as in few_channels_wgmma.cu.
//
// Compile-time: S, of the image, and T; Z and R as in epilogue.cuh; EXPANDS; UNFOLDED, the channels of a first layer's
// image, or 0; IN_WORDS, whether rows of that one are copied in words; FIRST_H FIRST_STEP_H, of its windows; SPAN_FIRST;
// TERMS, the channels of the image in sixteens; CHUNK; CHUNKS; COLUMNS, the channels of the result in sixteens; KH KW, odd;
// STEP, 1 or 2; PATCH_H PATCH_W DOWN ACROSS; PITCH_BOX, the pixels from one row of the image in shared memory to the next,
// an even number with UNFOLDED; WARPS; SLICES, of the columns of a projection, of which a warp has one at a time; STAGES,
// the chunks whose filtered pixels are in shared memory at once; MASKED, whether any pixel may be outside of the image, or
// else only those in the first FIRST_INSIDE and behind the first FIRST_OUTSIDE columns of a patch, and in its first and last
// two rows; RESIDENT; BIAS Z0 Z1 VECTOR_C. Generated: `expanded::epilogue`, of float32, and `filtered::epilogue`.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "gemm/epilogue.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "conv/residual_plane.cuh"

constexpr int THREADS = 32 * WARPS, KSTEPS = TERMS / 16;

#include "conv/image_words.cuh"

constexpr int PATCHES = DOWN * ACROSS, SETS = (PATCHES + 3) / 4, TILE_H = DOWN * PATCH_H, TILE_W = ACROSS * PATCH_W;
// Windows of a step: rows of sums of which it has a part, how many it finishes, and the others.
constexpr int ROWS = KH / STEP + 1, DONE = 2 / STEP, CARRY = ROWS - DONE;
// Steps of a walk, of which those between the first and the last one may be a loop of two; and columns of the image.
constexpr int ROW_PAIRS = STEP == 1 ? (PATCH_H + KH) / 2 : PATCH_H + KH / 2, UNROLLED = ROW_PAIRS % 2 ? 1 : 2;
constexpr int SPAN = (PATCH_W - 1) * STEP + KW;
constexpr int BOX_H = (DOWN - 1) * PATCH_H * STEP + 2 * ROW_PAIRS, BOX_W = (TILE_W - 1) * STEP + KW;
// What a first layer reads for them.
constexpr int IMAGE_H = (BOX_H - 1) * FIRST_STEP_H + FIRST_H, IMAGE_W = (BOX_W - 1) * 2 + SPAN_FIRST;
constexpr int RAW_ROW = row_of_words(IMAGE_W);
// Rows are an odd number of words of 16 bytes apart, so that eight of them are in different banks.
__device__ constexpr int pitch(int elements) { return (elements / 8 | 1) * 16; }
constexpr int PITCH_IN = UNFOLDED ? 8 : pitch(TERMS), PITCH = pitch(CHUNK);
// Bytes from a pixel that is expanded to the next one of its column, and of its row.
constexpr int BELOW = PITCH_BOX * PITCH_IN * (UNFOLDED ? FIRST_STEP_H : 1), BESIDE = PITCH_IN * (UNFOLDED ? 2 : 1);
// Sums of a set of patches: eight adjacent rows are two rows of a column of each.
constexpr int SET_ROWS = (PATCH_H + 1) / 2 * PATCH_W * 8, BANDS = (SETS * SET_ROWS + 15) / 16;
constexpr int ROWS_OUT = BANDS * 16;
constexpr int TN = COLUMNS / SLICES / 8, TASKS = BANDS * SLICES, RUN = (TASKS + WARPS - 1) / WARPS;
static_assert(CHUNK % 16 == 0 && COLUMNS % (16 * SLICES) == 0 && KH % 2 == 1 && ROW_PAIRS >= 2, "");
static_assert(PITCH_BOX >= (UNFOLDED ? IMAGE_W : BOX_W) && (!UNFOLDED || (EXPANDS && PITCH_BOX % 2 == 0)), "");
static_assert(!UNFOLDED || (SPAN_FIRST / 4 <= 2 && TERMS == FIRST_H * SPAN_FIRST * 4), "");

// The weights of a chunk in bytes: fragments of the expansion, its bias twice, the windows, their bias; and the projection.
constexpr int BIAS_IN = EXPANDS ? CHUNK * TERMS * 2 : 0, WINDOW = EXPANDS ? BIAS_IN + CHUNK * 8 : 0;
constexpr int SHIFT = WINDOW + KH * KW * CHUNK * 4;
constexpr int FIRST = SHIFT + CHUNK * 4, SECOND = COLUMNS * PITCH;
// The layout of shared memory: the image, filtered pixels, and weights.
constexpr int FILTERED = ((UNFOLDED ? IMAGE_H : BOX_H) * PITCH_BOX + (UNFOLDED ? 2 : 1)) * PITCH_IN, WEIGHTS = FILTERED + STAGES * ROWS_OUT * PITCH;

// Behind these the image of a first layer as it is, if its rows are copied in words.
constexpr int RAW = WEIGHTS + CHUNKS * (FIRST + SECOND);

struct alignas(16) Word {
    u32 at[4];
};

struct alignas(4) Pair {
    T at[2];
};

__device__ __forceinline__ u32 bits_of(const T& first, const T& second)
{
    const Pair pair = {{first, second}};
    return *(const u32*)&pair;
}

// Multiplies like MMA, and adds the product to `first`, which stays where it is.
__device__ __forceinline__ void multiply_onto(float (&sums)[4], const float (&first)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
#ifdef __CUDA_ARCH__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                 : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(first[0]), "f"(first[1]),
                   "f"(first[2]), "f"(first[3]));
#else
    for (int q = 0; q < 4; ++q) sums[q] = first[q];
    MMA(sums, a, b0, b1);
#endif
}

// Where 16 terms of a pixel are behind its first ones.
__device__ constexpr int behind(int k)
{
    if (!UNFOLDED) return k * 32;
    return k / (SPAN_FIRST / 4) * PITCH_BOX * PITCH_IN + k % (SPAN_FIRST / 4) * 32;
}

// What a lane needs for all steps of a walk: of 16 channels, it has two adjacent ones.
struct Walk {
    u32 weights[KSTEPS][4];  // of the expansion
    float bias[4];           // of both rows of the first channel, and of the second one
    float2 window[KH * KW], shift;
    u32 pixels, tails;  // where ldmatrix reads the first pixel of its row: of 32 terms, and 16 terms of two pixels
    int top;            // the row of the image with which the patch begins
    u32 columns;        // a bit for each column that is inside
    u32 to;             // where sums are stored
    const unsigned char* own_pixels;  // where the first pixel of its patch is, if nothing is expanded

    __device__ __forceinline__ Walk(const unsigned char* shared, u32 base, int chunk, int group, int set, int top, int left,
                                    const Plane& p)
    {
        const int lane = threadIdx.x % 32;
        const unsigned char* own = shared + WEIGHTS + chunk * (FIRST + SECOND);
#pragma unroll
        for (int k = 0; k < (EXPANDS ? KSTEPS : 0); ++k) {
            const Word found = *(const Word*)(own + ((group * KSTEPS + k) * 32 + lane) * 16);
#pragma unroll
            for (int q = 0; q < 4; ++q) weights[k][q] = found.at[q];
        }
        const int channel = group * 16 + lane / 4 * 2;
        if constexpr (EXPANDS) {
            const float4 added = *(const float4*)(own + BIAS_IN + channel * 8);
            bias[0] = added.x, bias[1] = added.y, bias[2] = added.z, bias[3] = added.w;
        }
#pragma unroll
        for (int i = 0; i < KH * KW; ++i) window[i] = *(const float2*)(own + WINDOW + (i * CHUNK + channel) * 4);
        shift = *(const float2*)(own + SHIFT + channel * 4);
        const auto begin_of = [](int patch) {
            return patch / ACROSS * PATCH_H * STEP * BELOW + patch % ACROSS * PATCH_W * STEP * BESIDE;
        };
        const int read = min(set * 4 + lane % 8 / 2, PATCHES - 1), patch = min(set * 4 + lane % 4, PATCHES - 1);
        const u32 first = base + begin_of(read) + lane % 2 * BELOW + lane / 8 % 2 * 16;
        pixels = first + lane / 16 * behind(1);
        tails = first + lane / 16 * BESIDE + behind(KSTEPS - 1);
        own_pixels = shared + begin_of(patch) + (chunk * CHUNK + channel) * 2;
        this->top = top + patch / ACROSS * PATCH_H * STEP;
        left += patch % ACROSS * PATCH_W * STEP;
        columns = 0;
#pragma unroll
        for (int j = 0; j < SPAN; ++j) columns |= u32((u32)(left + j) < (u32)p.width) << j;
        to = base + FILTERED + chunk % STAGES * ROWS_OUT * PITCH + (set * SET_ROWS + lane % 4 * 2) * PITCH + channel * 2;
    }

    // Expands a column of two rows of pixels: both of the first channel, and of the second one.
    __device__ __forceinline__ void expand(float (&found)[4], u32 (&tail)[4], u32 below, int column) const
    {
        if constexpr (!EXPANDS) {
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const Pair pair = *(const Pair*)(own_pixels + below + row * BELOW + column * BESIDE);
                found[row] = float(pair.at[0]), found[2 + row] = float(pair.at[1]);
            }
            return;
        }
#pragma unroll
        for (int k = 0; k + 1 < KSTEPS; k += 2) {
            u32 right[4];
            ldmatrix_x4(right, pixels + below + column * BESIDE + behind(k));
            if (k) MMA(found, weights[k], right[0], right[1]);
            else multiply_onto(found, bias, weights[k], right[0], right[1]);
            MMA(found, weights[k + 1], right[2], right[3]);
        }
        if constexpr (KSTEPS % 2) {
            if (column % 2 == 0) ldmatrix_x4(tail, tails + below + column * BESIDE);
            const int at = column % 2 * 2;
            if (KSTEPS > 1) MMA(found, weights[KSTEPS - 1], tail[at], tail[at + 1]);
            else multiply_onto(found, bias, weights[0], tail[at], tail[at + 1]);
        }
    }

    // Adds two rows of pixels to the sums of all windows that they are in, and stores those that are complete.
    template <bool BEGINS, bool ENDS>
    __device__ __forceinline__ void step(float (&sums)[ROWS][PATCH_W][2], int pair, const Plane& p) const
    {
        constexpr int LATEST = (ROW_PAIRS - 1) * DONE - CARRY;  // the first row of sums of the last step
        const u32 below = pair * 2 * BELOW;
        const bool inside[2] = {(u32)(top + pair * 2) < (u32)p.height, (u32)(top + pair * 2 + 1) < (u32)p.height};
#pragma unroll
        for (int i = CARRY; i < ROWS; ++i)
#pragma unroll
            for (int x = 0; x < PATCH_W; ++x) sums[i][x][0] = shift.x, sums[i][x][1] = shift.y;
        u32 tail[4];
        float next[4];
        expand(next, tail, below, 0);
#pragma unroll
        for (int j = 0; j < SPAN; ++j) {
            const float found[4] = {next[0], next[1], next[2], next[3]};
            if (j + 1 < SPAN) expand(next, tail, below, j + 1);
#pragma unroll
            for (int row = 0; row < 2; ++row)
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    float value = found[q * 2 + row];
                    if (EXPANDS) value = expanded::epilogue(value, 0, 0, 0, nullptr, nullptr);
                    const bool row_is_inside = !(MASKED || BEGINS || ENDS) || inside[row];
                    const bool column_is_inside = !(MASKED || j < FIRST_INSIDE || j >= FIRST_OUTSIDE) || columns >> j & 1;
                    if (EXPANDS) value = row_is_inside && column_is_inside ? value : 0.0f;
#pragma unroll
                    for (int s = 0; s < KW; ++s) {
                        if (j < s || (j - s) % STEP || (j - s) / STEP >= PATCH_W) continue;
                        const int x = (j - s) / STEP;
#pragma unroll
                        for (int i = 0; i < ROWS; ++i) {
                            const int r = KH - 1 + row - STEP * i;
                            if (r < 0 || r >= KH || (BEGINS && i < CARRY) || (ENDS && LATEST + i >= PATCH_H)) continue;
                            const float2& by = window[r * KW + s];
                            sums[i][x][q] = fmaf(value, q ? by.y : by.x, sums[i][x][q]);
                        }
                    }
                }
        }
#pragma unroll
        for (int i = 0; i < DONE; ++i) {
            const int row = pair * DONE - CARRY + i;
            if ((BEGINS && i < CARRY) || row < 0 || row >= PATCH_H) continue;
            const u32 at = to + (row / 2 * PATCH_W * 8 + row % 2) * PITCH;
#pragma unroll
            for (int x = 0; x < PATCH_W; ++x)
                fill<4>(at + x * 8 * PITCH, bits_of(filtered::epilogue(sums[i][x][0], 0, 0, 0, nullptr, nullptr),
                                                    filtered::epilogue(sums[i][x][1], 0, 0, 0, nullptr, nullptr)));
        }
#pragma unroll
        for (int i = 0; i < CARRY; ++i)
#pragma unroll
            for (int x = 0; x < PATCH_W; ++x)
#pragma unroll
                for (int q = 0; q < 2; ++q) sums[i][x][q] = sums[i + DONE][x][q];
    }

    __device__ __forceinline__ void run(const Plane& p) const
    {
        float sums[ROWS][PATCH_W][2];
        step<true, false>(sums, 0, p);
#pragma unroll UNROLLED
        for (int pair = 1; pair + 1 < ROW_PAIRS; ++pair) step<false, false>(sums, pair, p);
        step<false, true>(sums, ROW_PAIRS - 1, p);
    }
};

// Adds the products of a chunk to the sums of this warp's tasks.
__device__ __forceinline__ void project(float (&sums)[RUN][TN][4], u32 base, int chunk)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < RUN; ++i) {
        const int task = threadIdx.x / 32 + i * WARPS, band = task / SLICES, slice = task % SLICES;
        if (TASKS % WARPS && task >= TASKS) break;
        const u32 a = base + FILTERED + chunk % STAGES * ROWS_OUT * PITCH + (band * 16 + lane % 16) * PITCH + lane / 16 * 16;
        const u32 b = base + WEIGHTS + chunk * (FIRST + SECOND) + FIRST + (slice * TN * 8 + lane % 8 + lane / 16 * 8) * PITCH
                      + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < CHUNK / 16; ++k) {
            u32 left[4];
            ldmatrix_x4(left, a + k * 32);
#pragma unroll
            for (int j = 0; j < TN; j += 2) {
                u32 right[4];
                ldmatrix_x4(right, b + j * 8 * PITCH + k * 32);
                MMA(sums[i][j], left, right[0], right[1]);
                MMA(sums[i][j + 1], left, right[2], right[3]);
            }
        }
    }
}

// Where a tile of results is.
struct TilePlace {
    int n, row, column;

    __device__ __forceinline__ TilePlace(int tile, const Plane& p)
        : n(tile / p.across / p.down), row(tile / p.across % p.down * TILE_H), column(tile % p.across * TILE_W)
    {
    }

    __device__ __forceinline__ int top(const Plane& p) const { return row * STEP - p.pad_h; }
    __device__ __forceinline__ int left(const Plane& p) const { return column * STEP - p.pad_w; }
};

// Requests the part of the image that the windows of a tile read, zero outside of the image; a warp has one row at a time.
__device__ __forceinline__ void load_words(u32 base, const T* x, const TilePlace& tile, const Plane& p)
{
    constexpr int WORDS = TERMS / 8;
    const int left = tile.left(p), lane = threadIdx.x % 32;
    const T* image = x + (long long)tile.n * p.height * p.width * p.row_x;
    for (int y = threadIdx.x / 32; y < BOX_H; y += WARPS) {
        const int row = tile.top(p) + y, first = row * p.width + left;
        const bool row_is_inside = (u32)row < (u32)p.height;
#pragma unroll
        for (int begin = 0; begin < BOX_W * WORDS; begin += 32) {
            const int column = (begin + lane) / WORDS, word = (begin + lane) % WORDS;
            if (begin + 32 > BOX_W * WORDS && column >= BOX_W) break;
            const bool inside = row_is_inside && (u32)(left + column) < (u32)p.width && word * 8 < p.channels;
            cp_async<8>(base + (y * PITCH_BOX + column) * PITCH_IN + word * 16,
                        image + (inside ? (long long)(first + column) * p.row_x + word * 8 : 0), inside);
        }
    }
    cp_async_commit();
}

struct alignas(8) Pixel {
    T at[4];
};

// The part of the image that a first layer reads for a tile.
struct Part {
    int top, left, plane;
    const S* image;

    __device__ __forceinline__ Part(const S* x, const TilePlace& tile, const Plane& p, const Source& source)
        : top(tile.top(p) * FIRST_STEP_H - source.pad_h), left(tile.left(p) * 2 - source.pad_w),
          plane(source.height * source.width), image(x + (long long)tile.n * UNFOLDED * plane)
    {
    }

    __device__ __forceinline__ void request(u32 base, const Source& source) const
    {
        if constexpr (IN_WORDS)
            request_words<UNFOLDED, IMAGE_H, RAW_ROW / WORD>(base + RAW, image, top, left, source.height, source.width);
        cp_async_commit();
    }

    // Stores it in pixels of four channels.
    __device__ __forceinline__ void arrange(unsigned char* shared, const Source& source) const
    {
        constexpr int COUNT = IMAGE_H * IMAGE_W;
        const S* raw = (const S*)(shared + RAW) + (left & WORD - 1);
#pragma unroll 4
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            const int y = i / IMAGE_W, row = top + y, column = left + i - y * IMAGE_W;
            const bool inside = (u32)row < (u32)source.height && (u32)column < (u32)source.width;
            const S* from = IN_WORDS ? raw + i + y * (RAW_ROW - IMAGE_W) : image + (inside ? row * source.width + column : 0);
            Pixel pixel = {};
#pragma unroll
            for (int channel = 0; channel < UNFOLDED; ++channel)
                if (IN_WORDS || inside) pixel.at[channel] = T(from[channel * (IN_WORDS ? IMAGE_H * RAW_ROW : plane)]);
            *(Pixel*)(shared + (i + y * (PITCH_BOX - IMAGE_W)) * PITCH_IN) = pixel;
        }
    }
};

// The results of this warp's tasks: where they are stored, and the operands of their epilogue.
struct Results {
    int places[RUN][2];  // of pixels; -1 outside
    Operands<2> with[RUN][2][TN];

    __device__ __forceinline__ Results(const T* bias, const T* z0, const T* z1, const TilePlace& tile, const Plane& p)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < RUN; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int task = threadIdx.x / 32 + i * WARPS, eight = task / SLICES * 2 + half;
                const int patch = eight / (SET_ROWS / 8) * 4 + lane / 8, of_patch = eight % (SET_ROWS / 8);
                const int row_of_patch = of_patch / PATCH_W * 2 + lane / 4 % 2;
                const int row = tile.row + patch / ACROSS * PATCH_H + row_of_patch;
                const int column = tile.column + patch % ACROSS * PATCH_W + of_patch % PATCH_W;
                const bool inside = patch < PATCHES && row_of_patch < PATCH_H && row < p.out_height && column < p.out_width;
                places[i][half] = inside ? (tile.n * p.out_height + row) * p.out_width + column : -1;
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int channel = first(i) + j * 8;
                    if (inside && channel < p.filters)
                        with[i][half][j] = operands_at<2>((long long)places[i][half] * p.row_y + channel, places[i][half],
                                                          channel, 2, bias, z0, z1);
                }
            }
    }

    // The first channel of a task that a lane has.
    static __device__ __forceinline__ int first(int i)
    {
        return (threadIdx.x / 32 + i * WARPS) % SLICES * TN * 8 + threadIdx.x % 4 * 2;
    }

    __device__ __forceinline__ void store(R* y, const float (&sums)[RUN][TN][4], const Plane& p) const
    {
#pragma unroll
        for (int i = 0; i < RUN; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float values[2] = {sums[i][j][half * 2], sums[i][j][half * 2 + 1]};
                    const int place = places[i][half], channel = first(i) + j * 8;
                    if (place >= 0 && channel < p.filters)
                        epilogue_all(y, values, with[i][half][j], (long long)place * p.row_y + channel, 2);
                }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
residual_patches(const S* x, const T* weights, R* y, const T* bias, const T* z0, const T* z1, int tiles, Plane p, Source source)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const u32 base = shared_address(shared);
    for (int i = threadIdx.x * 16; i < CHUNKS * (FIRST + SECOND); i += THREADS * 16)
        cp_async<8>(base + WEIGHTS + i, (const T*)((const unsigned char*)weights + i), true);
    grid_dependency_sync();
    const auto place = [&](int tile) { return TilePlace(in_order(tile, tiles), p); };
    if constexpr (UNFOLDED > 0) Part(x, place(blockIdx.x), p, source).request(base, source);
    else load_words(base, (const T*)x, place(blockIdx.x), p);
    for (int next = blockIdx.x; next < tiles; next += gridDim.x) {
        const TilePlace tile = place(next);
        const bool continues = next + gridDim.x < tiles;
        float sums[RUN][TN][4] = {};
        cp_async_wait<0>();
        __syncthreads();
        if constexpr (UNFOLDED > 0) {
            Part(x, tile, p, source).arrange(shared, source);
            __syncthreads();
            if (continues) Part(x, place(next + gridDim.x), p, source).request(base, source);
        }
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll 1
            for (int item = threadIdx.x / 32; item < SETS * (CHUNK / 16); item += WARPS)
                Walk(shared, base, chunk, item / SETS, item % SETS, tile.top(p), tile.left(p), p).run(p);
            __syncthreads();
            if (chunk + 1 == CHUNKS) break;
            project(sums, base, chunk);
            if (STAGES == 1) __syncthreads();
        }
        if (!UNFOLDED && continues) load_words(base, (const T*)x, place(next + gridDim.x), p);
        const Results results(bias, z0, z1, tile, p);
        project(sums, base, CHUNKS - 1);
        results.store(y, sums, p);
    }
}
