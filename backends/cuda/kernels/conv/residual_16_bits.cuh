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
__device__ __forceinline__ void expand(unsigned char* shared, const int* places, int box, int weights, int count)
{
    constexpr int GROUPS = CHUNK / GROUP;
    const int lane = threadIdx.x % 32, bands = (count + 15) / 16;
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

    __device__ __forceinline__ Windows(u32 boxes, const unsigned char*, int band)
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

// Where a lane stores words of eight channels that are not projected.
struct Results {
    R* pixel;  // null outside of the result
    int filters;

    template <typename PlaceOf>
    __device__ __forceinline__ Results(R* y, const Plane& p, const PlaceOf& place_of, int band) : filters(p.filters)
    {
        const int lane = threadIdx.x % 32, place = place_of(band * 16 + lane / 4 + lane % 2 * 8);
        pixel = place < 0 ? nullptr : y + (long long)place * p.row_y + lane % 4 / 2 * 8;
    }

    __device__ __forceinline__ void store(int channel, const u32 (&fragment)[4]) const
    {
        const Word word = gathered(fragment);
        if (pixel && channel + int(threadIdx.x) % 4 / 2 * 8 < filters) *(Word*)(pixel + channel) = word;
    }
};

// Filters this warp's part of the chunk of this number, whose box and weights are so many bytes behind `shared`, and adds its
// projection to the sums, or stores it.
__device__ __forceinline__ void filter_chunk(float (&sums)[TN][4], unsigned char* shared, const Windows& windows, u32 rows_of_b,
                                             int box, int weights, int part, int chunk, const Results& results)
{
    const int lane = threadIdx.x % 32;
    const unsigned char* own = shared + weights;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        u32 fragment[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int word = ((part * STEPS + step) * 2 + half) * 16;
            const float2 shift = *(const float2*)(own + BIAS_OUT + word * 2 + lane % 4 * 8);
            float found[4] = {shift.x, shift.y, shift.x, shift.y};
            filter(found, windows, box + word, own + WINDOW + word * 4);
#pragma unroll
            for (int row = 0; row < 2; ++row)
                fragment[half * 2 + row] =
                    bits_of(filtered::epilogue(found[row * 2], 0, 0, 0, nullptr, nullptr),
                            filtered::epilogue(found[row * 2 + 1], 0, 0, 0, nullptr, nullptr));
        }
        if constexpr (PROJECTS) multiply<TN, PITCH>(sums, fragment, rows_of_b + weights + (part * STEPS + step) * 32);
        else results.store(chunk * CHUNK + (part * STEPS + step) * 16, fragment);
    }
}
