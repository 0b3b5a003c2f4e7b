// The arithmetic of inverted residuals of 16-bit floats: all products are those of tensor cores, with sums in float32.
//
// The depthwise convolution multiplies 16 pixels of eight channels with diagonal matrices: two elements of the windows at a
// time, of which each has 8 x 8 weights. The rows that ldmatrix loads are those pixels, displaced. An infinity turns seven
// neighbouring channels into NaN.

// Pairs of elements of a window: of two rows, and of one where their number is odd; the last one may be alone.
constexpr int PAIRS = KH / 2 * KW + KH % 2 * ((KW + 1) / 2);
constexpr int PITCH_BOX = PITCH;
// The weights of a chunk in bytes: of the expansion with a bias; of the projection and the windows with a bias.
constexpr int BIAS_IN = CHUNK * PITCH_IN, FIRST = EXPANDS ? BIAS_IN + CHUNK * 4 : 0;
constexpr int WINDOW = PROJECTS ? COLUMNS * PITCH : 0, BIAS_OUT = WINDOW + PAIRS * CHUNK * 8, SECOND = BIAS_OUT + CHUNK * 4;

// Where a column of a box is in its row: odd ones behind even ones if windows are two pixels apart, so that neighbouring
// windows read adjacent pixels, which are in different banks.
__device__ __forceinline__ constexpr int place_in_row(int column)
{
    return STEP_W == 2 ? column % 2 * ((BOX_W + 1) / 2) + column / 2 : column;
}
constexpr int STEP_PLACE = STEP_W == 2 ? 1 : STEP_W;  // from one window to the next

struct alignas(4) Pair {
    T at[2];
};

struct alignas(8) Weights {  // of a pair of elements of a window: the upper half of each for odd channels
    u32 first, second;
};

__device__ __forceinline__ u32 bits_of(const T& first, const T& second)
{
    const Pair pair = {{first, second}};
    return *(const u32*)&pair;
}

// Multiplies MANY times 16 rows, which are fragments, with COUNT * 8 rows of 16 elements at `b`.
template <int PITCH_OF, int MANY, int COUNT>
__device__ __forceinline__ void multiply(float (&sums)[MANY][COUNT][4], const u32 (&left)[MANY][4], u32 b)
{
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        u32 right[4];
        ldmatrix_x4(right, b + j * 8 * PITCH_OF);
#pragma unroll
        for (int i = 0; i < MANY; ++i) {
            MMA(sums[i][j], left[i], right[0], right[1]);
            MMA(sums[i][j + 1], left[i], right[2], right[3]);
        }
    }
}

// Expands the pixels of the image in shared memory; `places` says where in the box each is.
__device__ __forceinline__ void expand(unsigned char* shared, const int* places, int box, int weights, int count)
{
    constexpr int GROUPS = CHUNK / GROUP;
    const int lane = threadIdx.x % 32, bands = (count + 15) / 16;
    const u32 base = shared_address(shared);
    for (int item = threadIdx.x / 32; item < bands * GROUPS; item += WARPS) {
        const int band = item / GROUPS, first = item % GROUPS * GROUP;
        const float* bias = (const float*)(shared + weights + BIAS_IN) + first + lane % 4 * 2;
        float sums[1][GROUP / 8][4];
#pragma unroll
        for (int j = 0; j < GROUP / 8; ++j) {
            const float2 shift = *(const float2*)(bias + j * 8);
            sums[0][j][0] = sums[0][j][2] = shift.x, sums[0][j][1] = sums[0][j][3] = shift.y;
        }
        const u32 a = base + (band * 16 + lane % 16) * PITCH_IN + lane / 16 * 16;
        const u32 b = base + weights + (first + lane % 8 + lane / 16 * 8) * PITCH_IN + lane / 8 % 2 * 16;
#pragma unroll
        for (int k = 0; k < TERMS / 16; ++k) {
            u32 left[1][4];
            ldmatrix_x4(left[0], a + k * 32);
            multiply<PITCH_IN>(sums, left, b + k * 32);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = band * 16 + lane / 4 + half * 8;
            if (row >= count) continue;
            unsigned char* const to = shared + box + places[row] + (first + lane % 4 * 2) * 2;
#pragma unroll
            for (int j = 0; j < GROUP / 8; ++j)
                *(u32*)(to + j * 16) =
                    bits_of(expanded::epilogue(sums[0][j][2 * half], 0, 0, 0, nullptr, nullptr),
                            expanded::epilogue(sums[0][j][2 * half + 1], 0, 0, 0, nullptr, nullptr));
        }
    }
}

// Where the windows of a lane's pixel begin in a box: ldmatrix reads the first element of a pair for lanes below 16, and
// the second one for the others, which is in the next row, in the next column, or the same.
struct Each {
    u32 below, beside, alone;

    __device__ __forceinline__ Each(u32 boxes, int band)
    {
        const int lane = threadIdx.x % 32, row = min(band * LINES + lane % 16 / LINE, TILE_H - 1);
        alone = boxes + (row * STEP_H * BOX_W + min(lane % LINE, TILE_W - 1) * STEP_PLACE) * PITCH;
        below = alone + lane / 16 * BOX_W * PITCH, beside = alone + lane / 16 * place_in_row(1) * PITCH;
    }

    // The depthwise convolution of 16 pixels and eight channels, which are `offset` bytes behind the box, by weights at `by`.
    template <int N>
    __device__ __forceinline__ void filter(float (&sums)[N][4], int offset, const unsigned char* by) const
    {
        const int lane = threadIdx.x % 32;
        const u32 own = lane / 8 == lane % 4 ? ~0u : 0;  // of the diagonal
        const auto step = [&](int pair, u32 at) {
            u32 pixels[4];
            ldmatrix_x4(pixels, at + offset);
            const Weights weight = *(const Weights*)(by + (pair * CHUNK + lane / 4) * 8);
            MMA(sums[0], pixels, weight.first & own, weight.second & own);
        };
#pragma unroll
        for (int r = 0; r + 1 < KH; r += 2)
#pragma unroll
            for (int s = 0; s < KW; ++s) step(r / 2 * KW + s, below + (r * BOX_W + place_in_row(s)) * PITCH);
        if constexpr (KH % 2) {
#pragma unroll
            for (int s = 0; s < KW; s += 2)
                step(KH / 2 * KW + s / 2, (s + 1 < KW ? beside : alone) + ((KH - 1) * BOX_W + place_in_row(s)) * PITCH);
        }
    }
};

// The same of RUN bands one below the other and windows of three columns: eight pixels of a row of the box are loaded in
// each of their places in a window, once for all windows.
struct Run {
    static constexpr int HALVES = 2 / LINES, NEEDED = (RUN * LINES - 1) * STEP_H + KH;  // rows of the box
    u32 first, third;  // where pixels in the first two places begin, or in all three; in the third of two rows
    int row;

    __device__ __forceinline__ Run(u32 boxes, int run) : row(run * RUN * LINES * STEP_H)
    {
        const int lane = threadIdx.x % 32, pixel = min(lane % LINE, TILE_W - 1) * STEP_PLACE;
        first = boxes + (pixel + place_in_row(min(lane / LINE, 2))) * PITCH;
        third = boxes + (pixel + place_in_row(2)) * PITCH;
    }

    // Rows of warps whose last bands are outside of the tile may be, too.
    __device__ __forceinline__ u32 below(int rows) const
    {
        return (TILE_H % (RUN * LINES) ? min(row + rows, BOX_H - 1) : row + rows) * (BOX_W * PITCH);
    }

    __device__ __forceinline__ void filter(float (&sums)[RUN][4], int offset, const unsigned char* by) const
    {
        const int lane = threadIdx.x % 32;
        const u32 own = lane / 8 == lane % 4 ? ~0u : 0;  // of the diagonal
        Weights weights[PAIRS];
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            weights[pair] = *(const Weights*)(by + (pair * CHUNK + lane / 4) * 8);
            weights[pair].first &= own, weights[pair].second &= own;
        }
        u32 pixels[NEEDED + 1][4][HALVES];
#pragma unroll
        for (int y = 0; y < NEEDED; y += HALVES) {
            u32 found[4];
#pragma unroll
            for (int next = y; next < y + HALVES && next < NEEDED; ++next) {
                ldmatrix_x4(found, first + below(next) + offset);
#pragma unroll
                for (int q = 0; q < 4; ++q) pixels[next][q / HALVES][q % HALVES] = found[q];
            }
            if constexpr (HALVES == 2) {
                ldmatrix_x4(found, third + below(y + lane / 16) + offset);
#pragma unroll
                for (int q = 0; q < 4; ++q) pixels[y + q / 2][2][q % 2] = found[q];
            }
        }
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const auto step = [&](int pair, int r, int s, int next_r, int next_s) {
                u32 left[4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int y = (i * LINES + half / HALVES) * STEP_H, which = half % HALVES;
                    left[half] = pixels[y + r][s][which];
                    left[2 + half] = pixels[y + next_r][next_s][which];
                }
                MMA(sums[i], left, weights[pair].first, weights[pair].second);
            };
#pragma unroll
            for (int r = 0; r + 1 < KH; r += 2)
#pragma unroll
                for (int s = 0; s < 3; ++s) step(r / 2 * 3 + s, r, s, r + 1, s);
            if constexpr (KH % 2) {
                step(KH / 2 * 3, KH - 1, 0, KH - 1, 1);
                step(KH / 2 * 3 + 1, KH - 1, 2, KH - 1, 2);
            }
        }
    }
};

// Either, for the boxes of this run of bands.
struct Windows {
    Each each;
    Run rolling;

    __device__ __forceinline__ Windows(u32 boxes, const unsigned char*, int run) : each(boxes, run), rolling(boxes, run) {}

    __device__ __forceinline__ void filter(float (&sums)[RUN][4], int offset, const unsigned char* by) const
    {
        if constexpr (ROLLS) rolling.filter(sums, offset, by);
        else each.filter(sums, offset, by);
    }
};

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

// Where a lane stores words of eight channels that are not projected, of a pixel of each band.
struct Results {
    R* pixels[RUN];  // null outside of the result
    int filters;

    template <typename PlaceOf>
    __device__ __forceinline__ Results(R* y, const Plane& p, const PlaceOf& place_of, int run) : filters(p.filters)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const int place = place_of((run * RUN + i) * 16 + lane / 4 + lane % 2 * 8);
            pixels[i] = place < 0 ? nullptr : y + (long long)place * p.row_y + lane % 4 / 2 * 8;
        }
    }

    __device__ __forceinline__ void store(int channel, const u32 (&fragments)[RUN][4]) const
    {
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            const Word word = gathered(fragments[i]);
            if (pixels[i] && channel + int(threadIdx.x) % 4 / 2 * 8 < filters) *(Word*)(pixels[i] + channel) = word;
        }
    }
};

// Filters this warp's part of the chunk of this number, whose box and weights are this many bytes behind `shared`, and adds its
// projection to the sums, or stores it.
__device__ __forceinline__ void filter_chunk(float (&sums)[RUN][TN][4], unsigned char* shared, const Windows& windows,
                                             u32 rows_of_b, int box, int weights, int part, int chunk,
                                             const Results& results)
{
    const int lane = threadIdx.x % 32;
    const unsigned char* own = shared + weights;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        u32 fragments[RUN][4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int word = ((part * STEPS + step) * 2 + half) * 16;
            const float2 shift = *(const float2*)(own + BIAS_OUT + word * 2 + lane % 4 * 8);
            float found[RUN][4];
#pragma unroll
            for (int i = 0; i < RUN; ++i) found[i][0] = found[i][2] = shift.x, found[i][1] = found[i][3] = shift.y;
            windows.filter(found, box + word, own + WINDOW + word * 4);
#pragma unroll
            for (int i = 0; i < RUN; ++i)
#pragma unroll
                for (int row = 0; row < 2; ++row)
                    fragments[i][half * 2 + row] =
                        bits_of(filtered::epilogue(found[i][row * 2], 0, 0, 0, nullptr, nullptr),
                                filtered::epilogue(found[i][row * 2 + 1], 0, 0, 0, nullptr, nullptr));
        }
        if constexpr (PROJECTS) multiply<PITCH>(sums, fragments, rows_of_b + weights + (part * STEPS + step) * 32);
        else results.store(chunk * CHUNK + (part * STEPS + step) * 16, fragments);
    }
}
