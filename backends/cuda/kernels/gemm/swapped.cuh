// Products on Hopper whose left operand is the weights, so that few rows of the other one fill the right one: which tile
// a block has, and its sums as rows of results.
//
// Compile-time: BM and BN, rows of `a` and of the weights of a block; PITCH, of the sums in shared memory; STEPS, of all
// blocks that share a tile.

enum { WHOLE, PARTIAL, CLUSTER };

struct Block {  // the tile of a block, and which of the blocks that share it this one is
    int m0, n0, split, splits, first, end;
    static constexpr int batch = 0;

    // Tiles of the same weights are adjacent.
    __device__ __forceinline__ Block(int tiles_m) : split(blockIdx.y), splits(gridDim.y)
    {
        const int tile_n = blockIdx.x / tiles_m;
        n0 = tile_n * BN, m0 = (blockIdx.x - tile_n * tiles_m) * BM;
        first = STEPS * split / splits, end = STEPS * (split + 1) / splits;  // its steps
    }

#if BOXES
    int n, y, x, height, width;  // where its patch begins in the results, and of these

    __device__ __forceinline__ Block(int tiles_m, const Image& image) : Block(tiles_m)
    {
        const Begin begin(m0, image);
        n = begin.n, y = begin.y, x = begin.x, height = image.out_height, width = image.out_width;
    }
#endif
};

#if BOXES
// The row of the result that row `row` of a tile is: a pixel of a patch, or none.
__device__ __forceinline__ int row_of_result(const Block& block, int row)
{
    const int y = block.y + row / 8, x = block.x + row % 8;
    return y < block.height && x < block.width ? (block.n * block.height + y) * block.width + x : 0x7fffffff;
}
#endif

typedef float Sums[BM / 8][4];

// Stores the sums of a warp in shared memory as rows of results, times the scales of a thread's columns; `n` is the first one
// of the warp.
__device__ __forceinline__ void gather(float* parts, const Sums& sums, const float (&scale)[2], int slice, int n)
{
    const int lane = threadIdx.x % 32;
    float* const own = parts + slice * (BM * PITCH) + lane % 4 * 2 * PITCH + n + lane / 4;
#pragma unroll
    for (int j = 0; j < BM / 8; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) own[(j * 8 + q % 2) * PITCH + q / 2 * 8] = sums[j][q] * scale[q / 2];
}
