// Windows of an image in halves as rows of swap_f16x3.cu: tensor maps bring the pixels of each tap, and a warp their scales.

// Windows of an image in halves.
struct Source {
    const TensorMap* map;
    const float* scales;
    int pixels;  // of all images
    Image image;
    Taps taps;
    int m;
};

// Those of a block, whose steps are requested in order.
struct ReadyRows {
    static constexpr int bytes = BYTES_A;  // of a step
    const Source& source;
    int m0;
    u32 shared;
    Begin begin;
    Corner corner;
    Tap tap;

    __device__ __forceinline__ ReadyRows(const Source& source, const Block& block, u32 shared)
        : source(source), m0(block.m0), shared(shared), begin(block.m0, source.image), corner(begin, source.image),
          tap(block.first * HALVES, source.taps)
    {
    }

    // Requests those of the next step.
    __device__ __forceinline__ void bring(int step, u32 full)
    {
#pragma unroll
        for (int half = 0; half < HALVES; ++half, tap.next(source.taps))
            copy_pixels(shared + step % STAGES * BYTES_A + half * TILE_A, source.map, full, corner, tap, source.taps, m0, source.m);
    }

    // The scales of all steps, from when `ready` on; a warp.
    template <typename Ready> __device__ __forceinline__ void bring_scales(int count, const Barriers& barriers, const Ready& ready)
    {
        const RowScales rows(begin, m0, source.m, source.image);
        ready();
        for (int step = 0; step < count; ++step) {
            if (step >= STAGES) mbarrier_wait(barriers.empty(step - STAGES), 0);
            rows.copy(shared + SCALES + step % STAGES * BM * 4, source.scales, source.pixels, tap, source.taps, source.image);
            mbarrier_arrive_cp_async(barriers.full(step));
            tap.next(source.taps), tap.next(source.taps);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }
};
