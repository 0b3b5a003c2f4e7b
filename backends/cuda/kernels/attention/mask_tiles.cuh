// Masks that TMA brings to shared memory beside the keys of a step. Threads read them in the layout of a product's sums
// without bank conflicts, those of 16 bits four pairs at a time.
//
// Compile-time, besides the constants of online_softmax.cuh: KEYS of a step; MASK_WIDTH, bytes per row of a box (32, 64,
// 128), or 0 if threads read the mask from memory; MASK_HEIGHT, rows of a box, ONE_ROW if the mask has a single one.

constexpr bool MASK_TILES = MASK_WIDTH > 0;
constexpr int ONE_ROW = 8;  // the swizzle's period
constexpr int BOX = MASK_TILES ? MASK_WIDTH : 32, OF_KEY = sizeof(M);
constexpr int BOXES = MASK_TILES ? (KEYS * OF_KEY + BOX - 1) / BOX : 0, BYTES_BOX = MASK_HEIGHT * BOX;
constexpr int BYTES_MASK = BOXES * BYTES_BOX;

// Starts to load the mask from row `m0` and key `t0` on.
__device__ __forceinline__ void load_mask_tile(u32 to, const TensorMap* mask, u32 barrier, int t0, int m0, int head, int n,
                                               const MaskSteps& by)
{
    for (int i = 0; i < BOXES; ++i)
        tma_load_4d(to + i * BYTES_BOX, mask, barrier, t0 + i * (BOX / OF_KEY), by.row ? m0 : 0, by.head ? head : 0,
                    by.batch ? sample_of_mask(n) : 0);
}

// What the mask adds to the scores of a warp's sixteen rows, which begin with `row` of a tile.
struct MaskOfWarp {
    const unsigned char* tile;
    int place;             // of the thread's first load
    mutable u32 words[4];  // of two eights

    __device__ __forceinline__ MaskOfWarp(const unsigned char* tile, int row) : tile(tile)
    {
        const int lane = threadIdx.x % 32, own = row + (OF_KEY == 2 ? lane % 16 : lane / 4);
        const int start = MASK_HEIGHT == ONE_ROW ? 0 : own * BOX;
        place = start + ((OF_KEY == 2 ? lane / 16 * 16 : lane % 4 * 2 * OF_KEY) ^ (start >> 3 & (BOX - 16)));
    }

    // Where the thread's pair, or its row of a matrix, lies.
    __device__ __forceinline__ const unsigned char* of(int eight, int half) const
    {
        const int begin = eight * 8 * OF_KEY, chunk = begin % BOX / 16 * 16;
        return tile + (place ^ chunk) + begin / BOX * BYTES_BOX + begin % 16
               + (MASK_HEIGHT == ONE_ROW ? 0 : half * 8 * BOX);
    }
};

__device__ __forceinline__ BiasPairs biases_at(const MaskOfWarp& mask, int eight)
{
    BiasPairs found = {{}, true};
    if constexpr (OF_KEY == 2) {
        if (eight % 2 == 0) ldmatrix_x4(mask.words, shared_address(mask.of(eight, 0)));
        for (int half = 0; half < 2; ++half) found.of[half] = *(const MaskPair*)&mask.words[eight % 2 * 2 + half];
    } else {
        for (int half = 0; half < 2; ++half) found.of[half] = *(const MaskPair*)mask.of(eight, half);
    }
    return found;
}
