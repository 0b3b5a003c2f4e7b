// What kernels of images with few channels have in common: the shape of the problem, how images are cut in halves, and how a
// tile of results is stored.
//
// Compile-time: as in few_channels_mma.cu.

struct Plane {
    int filters, height, width, out_height, out_width, pad_h, pad_w;
    int pooled_height, pooled_width, pool_pad_h, pool_pad_w;
    int row_y;         // elements from one pixel of the result to the next
    int down, across;  // tiles of an image
    // Of a volume, each frame of results is an image; its windows begin `frame_step` after those of the one before.
    int depth, frames, frame_step, pad_d;
};

// The sample of image n, and the first frame of it that its windows read.
template <typename S>
__device__ __forceinline__ const S* sample_of(const S* x, int n, int& front, const Plane& p)
{
    const int sample = n / p.frames;
    front = (n - sample * p.frames) * p.frame_step - p.pad_d;
    return x + (long long)sample * CHANNELS * p.depth * p.height * p.width;
}

// The scale of a block, of which `most` is a thread's greatest number; threads wait for each other.
__device__ __forceinline__ RowScale scale_of_block(float most)
{
    __shared__ u32 of_warps[WARPS];
#pragma unroll
    for (int other = 1; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = __float_as_uint(most);
    __syncthreads();
    u32 greatest = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) greatest = of_warps[warp] > greatest ? of_warps[warp] : greatest;
    return RowScale(greatest);
}

// Cuts a scaled pixel in high and low parts.
__device__ __forceinline__ void cut_pixel(const float (&x)[4], u32 (&high)[2], u32 (&low)[2])
{
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const Halves halves(x[2 * i], x[2 * i + 1], finite_or_zero(x[2 * i]), finite_or_zero(x[2 * i + 1]));
        high[i] = halves.high, low[i] = halves.low;
    }
}

__device__ __forceinline__ Words greatest_of(Words a, const Words& b)
{
    if constexpr (PARTS == 1) return greater(a, b);
#pragma unroll
    for (int q = 0; q < 8; ++q) a.at[q] = maximum(a.at[q], b.at[q]);
    return a;
}

// Stores what is in shared memory: pixels of the tile at (row0, column0) of the results, WORDS of eight filters from filter
// `first` on.
template <int WORDS>
__device__ __forceinline__ void store_results(const unsigned char* results, R* y, int row0, int column0, int first,
                                              const Plane& p)
{
    constexpr int PITCH = WORDS * sizeof(Words) + 16;
    const auto word_at = [&](int row, int column, int word) {
        return *(const Words*)(results + (row * TILE_W + column) * PITCH + word * sizeof(Words));
    };
    if constexpr (POOL_H == 0) {
        for (int i = threadIdx.x; i < PIXELS * WORDS; i += THREADS) {
            const int word = i % WORDS, row = i / WORDS / TILE_W, column = i / WORDS % TILE_W;
            const int channel = first + word * 8;
            if (row0 + row >= p.out_height || column0 + column >= p.out_width || channel >= p.filters) continue;
            const long long pixel = (row0 + row) * p.out_width + column0 + column;
            keep(y + pixel * p.row_y + channel, word_at(row, column, word), p.filters - channel);
        }
    } else {
        constexpr int DOWN = (TILE_H - POOL_H) / POOL_STEP_H + 1, ACROSS = (TILE_W - POOL_W) / POOL_STEP_W + 1;
        const int pooled_row0 = (row0 + p.pool_pad_h) / POOL_STEP_H, pooled_column0 = (column0 + p.pool_pad_w) / POOL_STEP_W;
        for (int i = threadIdx.x; i < DOWN * ACROSS * WORDS; i += THREADS) {
            const int word = i % WORDS, down = i / WORDS / ACROSS, across = i / WORDS % ACROSS;
            const int channel = first + word * 8, row = pooled_row0 + down, column = pooled_column0 + across;
            if (row >= p.pooled_height || column >= p.pooled_width || channel >= p.filters) continue;
            // Instead of pixels outside of the image, those of the window next to them are read once more.
            Words best;
#pragma unroll
            for (int r = 0; r < POOL_H; ++r)
#pragma unroll
                for (int s = 0; s < POOL_W; ++s) {
                    const int v = min(max(down * POOL_STEP_H + r, -row0), p.out_height - 1 - row0);
                    const int u = min(max(across * POOL_STEP_W + s, -column0), p.out_width - 1 - column0);
                    const Words found = word_at(v, u, word);
                    best = r + s > 0 ? greatest_of(best, found) : found;
                }
            const long long pixel = row * p.pooled_width + column;
            keep(y + pixel * p.row_y + channel, best, p.filters - channel);
        }
    }
}

