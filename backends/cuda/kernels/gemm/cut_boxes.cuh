// Windows of an image whose pixels a block of swap_f16x3.cu cuts into halves once for all taps: a tile is a patch of eight pixels
// in each row, and for every 64 channels the pixels that its windows cover are a box in shared memory. A wgmma descriptor
// begins at any pixel of it, and its groups of eight rows are rows of the patch. The taps of 64 channels follow one another.
// Where windows are SH and SW pixels apart, a box has the pixels of every SH-th row and SW-th column in planes of their own, so
// that those of a tap are neighbours.
//
// Compile-time: BM, pixels of a patch; BOXES, of a block at most; KH, KW, the window; DH, DW, the distances of its taps; SH, SW.

struct Source {
    const T* a;
    int lda, channels;
    Image image;
};

// Nothing is in halves already.
struct ReadyRows {
    static constexpr int bytes = 0;
    __device__ __forceinline__ ReadyRows(const Source&, const Block&, u32) {}
    __device__ __forceinline__ void bring(int, u32) const {}
};

struct BoxesToCut {
    static constexpr int AT_ONCE = CONSUMERS / 8, PER = (BOX_PIXELS + AT_ONCE - 1) / AT_ONCE;
    const T* from;
    int channels, offsets[PER];  // of a thread's pixels, negative outside of the image

    __device__ __forceinline__ BoxesToCut(const Source& source, const Block& block) : from(source.a), channels(source.channels)
    {
        const Image& image = source.image;
        const Corner corner(Begin(block.m0, image), image);
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const int pixel = threadIdx.x / 8 + i * AT_ONCE, plane = pixel / OF_PLANE, place = pixel % OF_PLANE;
            const int y = corner.y + place / BOX_W * SH + plane / PLANES_W, x = corner.x + place % BOX_W * SW + plane % PLANES_W;
            const bool inside = pixel < BOX_PIXELS && (u32)y < (u32)image.height && (u32)x < (u32)image.width;
            offsets[i] = inside ? ((corner.n * image.height + y) * image.width + x) * source.lda : -1;
        }
    }

    // Reads those of 64 channels.
    __device__ __forceinline__ void load(FoundRow (&found)[PER], int chunk) const
    {
        const int part = threadIdx.x % 8, own = chunk * STEP + part / 2 * 8 + part % 2 * 2;
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const int channel = own + half * 32 + four * 4;
                    const bool there = offsets[i] >= 0 && channel < channels;
                    found[i][half][four] = global_short(from + (there ? offsets[i] + channel : 0), there);
                }
    }

    // Stores all boxes of a block in halves; those of the next channels are under way meanwhile.
    __device__ __forceinline__ void cut(unsigned char* shared, const Block& block) const
    {
        const int first = block.first / TAPS, count = (block.end - 1) / TAPS + 1 - first;
        FoundRow found[PER], next[PER];
        load(found, first);
#pragma unroll 1
        for (int box = 0; box < count; ++box) {
            if (box + 1 < count) load(next, first + box + 1);
            cut_found<AT_ONCE, BOX_PIXELS, NEXT_A>(found, threadIdx.x / 8, shared + box * (HALVES * NEXT_A),
                                                   (float*)(shared + SCALES) + box * BOX_PIXELS);
#pragma unroll
            for (int i = 0; i < PER; ++i)
#pragma unroll
                for (int at = 0; at < 2 * HALVES; ++at) found[i][at / 2][at % 2] = next[i][at / 2][at % 2];
        }
    }
};
