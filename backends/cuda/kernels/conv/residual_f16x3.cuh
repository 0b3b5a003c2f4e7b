// The arithmetic of inverted residuals of float32: products on tensor cores as three of float16 (halves.cuh), windows in
// float32. Rows that are multiplied, of a pixel or a filter, are their high parts, then their low parts. A pixel of the image
// has one scale, and one of the filtered image as many as there are parts of chunks. Sums of more than 64 terms are added up
// by the CUDA cores, as tensor cores truncate.

// Where a column of a box is in its row.
__device__ __forceinline__ constexpr int place_in_row(int column) { return column; }

constexpr int PITCH_BOX = (CHUNK / 8 | 1) * 32;  // so that two floats of four pixels are in different banks
// The weights of a chunk in bytes: of the expansion with a bias and the scales of its rows; of the projection and the windows
// with a bias. The scales of results are behind the weights of all chunks.
constexpr int BIAS_IN = CHUNK * PITCH_IN, SCALES_IN = BIAS_IN + CHUNK * 4, FIRST = EXPANDS ? SCALES_IN + CHUNK * 4 : 0;
constexpr int WINDOW = PROJECTS ? COLUMNS * PITCH : 0, BIAS_OUT = WINDOW + KH * KW * CHUNK * 4, SECOND = BIAS_OUT + CHUNK * 4;
static_assert(RUN == 1 && !ROLLS, "");
constexpr int AT_ONCE = 4;  // sixteens of terms that tensor cores add up

// Adds the products of 16 rows in halves, which are fragments, with COUNT * 8 rows of 16 terms at `b`, whose low parts are
// LOW bytes further; the small ones apart.
template <int COUNT, int PITCH_OF, int LOW>
__device__ __forceinline__ void multiply(float (&great)[COUNT][4], float (&small)[COUNT][4], const u32 (&high)[4],
                                         const u32 (&low)[4], u32 b)
{
#pragma unroll
    for (int j = 0; j < COUNT; j += 2) {
        u32 right[4], rest[4];
        ldmatrix_x4(right, b + j * 8 * PITCH_OF);
        ldmatrix_x4(rest, b + j * 8 * PITCH_OF + LOW);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            MMA(small[j + side], low, right[2 * side], right[2 * side + 1]);
            MMA(great[j + side], high, right[2 * side], right[2 * side + 1]);
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) MMA(small[j + side], high, rest[2 * side], rest[2 * side + 1]);
    }
}

// Where the parts of a row of the image go, if it exists.
struct RowStore {
    unsigned char* row;
    bool exists;

    __device__ __forceinline__ void operator()(int column, uint2 high, uint2 low) const
    {
        if (!exists) return;
        *(uint2*)(row + column * 2) = high;
        *(uint2*)(row + (TERMS + column) * 2) = low;
    }
};

// Cuts the rows of the image in their places, four of each warp that has copied them, two such fours at a time; behind a
// row is the inverse of its scale. Whole warps take part: rows behind the last one are zeros.
__device__ __forceinline__ void cut_image(unsigned char* shared, int count)
{
    constexpr int COUNT = TERMS <= 64 ? 2 : 1;
    for (int first = threadIdx.x / 32 * 4; first < count; first += COUNT * THREADS / 8) {
        RowsToCut<COUNT, RowStore> rows;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool exists = first + i * THREADS / 8 < count;
            unsigned char* const row = shared + (first + (exists ? i * THREADS / 8 : 0) + threadIdx.x % 32 / 8) * PITCH_IN;
            rows.from[i] = (const float*)row, rows.store[i] = {row, exists};
        }
        const Inverses<COUNT> inverses = cut<TERMS>(rows);
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (threadIdx.x % 8 == 0 && rows.store[i].exists) *(float*)(rows.store[i].row + TERMS * 4) = inverses.at[i] * LESS;
    }
}

// Expands the pixels of the image in shared memory; `places` says where in the box each is.
__device__ __forceinline__ void expand(unsigned char* shared, const int* places, int box, int weights, int count)
{
    constexpr int GROUPS = CHUNK / GROUP;
    const int lane = threadIdx.x % 32, bands = (count + 15) / 16;
    const u32 base = shared_address(shared);
    for (int item = threadIdx.x / 32; item < bands * GROUPS; item += WARPS) {
        const int band = item / GROUPS, first = item % GROUPS * GROUP, column = first + lane % 4 * 2;
        float totals[GROUP / 8][4] = {};
        const u32 a = base + (band * 16 + lane % 16) * PITCH_IN + lane / 16 * 16;
        const u32 b = base + weights + (first + lane % 8 + lane / 16 * 8) * PITCH_IN + lane / 8 % 2 * 16;
#pragma unroll 1
        for (int begin = 0; begin < TERMS / 16; begin += AT_ONCE) {
            float great[GROUP / 8][4] = {}, small[GROUP / 8][4] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                if (TERMS / 16 % AT_ONCE && begin + k >= TERMS / 16) break;
                u32 high[4], low[4];
                ldmatrix_x4(high, a + (begin + k) * 32);
                ldmatrix_x4(low, a + (begin + k) * 32 + TERMS * 2);
                multiply<GROUP / 8, PITCH_IN, TERMS * 2>(great, small, high, low, b + (begin + k) * 32);
            }
#pragma unroll
            for (int j = 0; j < GROUP / 8; ++j)
#pragma unroll
                for (int q = 0; q < 4; ++q) totals[j][q] += great[j][q] + small[j][q];
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = band * 16 + lane / 4 + half * 8;
            if (row >= count) continue;
            const float inverse = *(const float*)(shared + row * PITCH_IN + TERMS * 4);
            unsigned char* const to = shared + box + places[row] + column * 4;
#pragma unroll
            for (int j = 0; j < GROUP / 8; ++j) {
                const float2 shift = *(const float2*)(shared + weights + BIAS_IN + (column + j * 8) * 4);
                const float2 by = *(const float2*)(shared + weights + SCALES_IN + (column + j * 8) * 4);
                const float x = totals[j][2 * half] * inverse * by.x + shift.x;
                const float y = totals[j][2 * half + 1] * inverse * by.y + shift.y;
                *(float2*)(to + j * 32) = make_float2(expanded::epilogue(x, 0, 0, 0, nullptr, nullptr),
                                                      expanded::epilogue(y, 0, 0, 0, nullptr, nullptr));
            }
        }
    }
}

// Where the windows of a lane's two pixels begin in a box, with its two channels of every eight.
struct Windows {
    const unsigned char* at[2];

    __device__ __forceinline__ Windows(u32, const unsigned char* boxes, int band)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int pixel = int(threadIdx.x) % 32 / 4 + half * 8, row = min(band * LINES + pixel / LINE, TILE_H - 1);
            const int column = min(pixel % LINE, TILE_W - 1);
            at[half] = boxes + (row * STEP_H * BOX_W + column * STEP_W) * PITCH_BOX + threadIdx.x % 4 * 8;
        }
    }
};

// The depthwise convolution of 16 pixels and eight channels, which are `offset` bytes behind the box, by weights at `by`.
__device__ __forceinline__ void filter(float (&sums)[4], const Windows& windows, int offset, const unsigned char* by)
{
#pragma unroll
    for (int r = 0; r < KH; ++r)
#pragma unroll
        for (int s = 0; s < KW; ++s) {
            const float2 weight = *(const float2*)(by + (r * KW + s) * CHUNK * 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 x = *(const float2*)(windows.at[half] + offset + (r * BOX_W + s) * PITCH_BOX);
                sums[half * 2] += x.x * weight.x;
                sums[half * 2 + 1] += x.y * weight.y;
            }
        }
}

// Where a lane stores two channels of every eight of its pixels, if they are not projected.
struct Results {
    R* pixels[2];  // null outside of the result
    int filters;

    template <typename PlaceOf>
    __device__ __forceinline__ Results(R* y, const Plane& p, const PlaceOf& place_of, int band) : filters(p.filters)
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int place = place_of(band * 16 + int(threadIdx.x) % 32 / 4 + half * 8);
            pixels[half] = place < 0 ? nullptr : y + (long long)place * p.row_y + threadIdx.x % 4 * 2;
        }
    }

    __device__ __forceinline__ void store(int channel, const float (&values)[4]) const
    {
        if (channel >= filters) return;  // there are eight or none
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (pixels[half]) *(float2*)(pixels[half] + channel) = make_float2(values[2 * half], values[2 * half + 1]);
    }
};

// Sixteen pixels of filtered channels of a warp in halves, and the inverses of the scales of a lane's two.
struct Filtered {
    u32 high[STEPS][4], low[STEPS][4];
    float inverse[2];

    __device__ __forceinline__ explicit Filtered(const float (&values)[STEPS * 2][4])
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = 0;
#pragma unroll
            for (int eight = 0; eight < STEPS * 2; ++eight)
#pragma unroll
                for (int q = 0; q < 2; ++q) most = fmaxf(most, finite_or_zero(fabsf(values[eight][half * 2 + q])));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const RowScale by(__float_as_uint(most));
            inverse[half] = by.inverse * LESS;
#pragma unroll
            for (int eight = 0; eight < STEPS * 2; ++eight) {
                const float x = values[eight][half * 2] * by.scale, y = values[eight][half * 2 + 1] * by.scale;
                const Halves halves(x, y, finite_or_zero(x), finite_or_zero(y));
                high[eight / 2][eight % 2 * 2 + half] = halves.high, low[eight / 2][eight % 2 * 2 + half] = halves.low;
            }
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
    float values[STEPS * 2][4];
#pragma unroll
    for (int eight = 0; eight < STEPS * 2; ++eight) {
        const int offset = (part * STEPS * 2 + eight) * 32;  // bytes of eight channels
        const float2 shift = *(const float2*)(own + BIAS_OUT + offset + lane % 4 * 8);
        float found[4] = {shift.x, shift.y, shift.x, shift.y};
        filter(found, windows, box + offset, own + WINDOW + offset + lane % 4 * 8);
#pragma unroll
        for (int q = 0; q < 4; ++q) values[eight][q] = filtered::epilogue(found[q], 0, 0, 0, nullptr, nullptr);
        if constexpr (!PROJECTS) results.store(chunk * CHUNK + (part * STEPS * 2 + eight) * 8, values[eight]);
    }
    if constexpr (!PROJECTS) return;
    const Filtered rows(values);
    rows_of_b += weights + part * STEPS * 32;
#pragma unroll
    for (int begin = 0; begin < STEPS; begin += AT_ONCE)
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            float great[2][4] = {}, small[2][4] = {};
#pragma unroll
            for (int step = begin; step < STEPS && step < begin + AT_ONCE; ++step)
                multiply<2, PITCH, CHUNK * 2>(great, small, rows.high[step], rows.low[step],
                                              rows_of_b + j * 8 * PITCH + step * 32);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int q = 0; q < 4; ++q) sums[0][j + side][q] += (great[side][q] + small[side][q]) * rows.inverse[q / 2];
        }
}

// Multiplies a lane's sums by the scales of their columns.
__device__ __forceinline__ void scale(float (&sums)[TN][4], const unsigned char* scales)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float2 by = *(const float2*)(scales + (j * 8 + threadIdx.x % 4 * 2) * 4);
        sums[j][0] *= by.x, sums[j][2] *= by.x, sums[j][1] *= by.y, sums[j][3] *= by.y;
    }
}
