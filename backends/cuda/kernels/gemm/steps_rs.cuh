// The main loop of a warpgroup that multiplies 64 rows of `a` in registers by tiles of `b`: it takes the stages of a pipeline
// as they are filled, with BM rows of `a` and then the tiles of `b` in each, and releases them.
//
// Compile-time: STAGES; BYTES_STAGE; BYTES_A; TN, eights of columns; BARRIERS, where those of the pipeline are; OVERLAP, whether
// a step is read while the one before is multiplied. With FACTORS, a macro, terms are multiplied by factors, which are
// requested before a step is full: those of one image for a warp, or, with IMAGES of 2, of the image that a row belongs to.

// Accumulates the steps of one work item after another.
struct Steps {
    u32 shared, place;
    Pipeline<STAGES> barriers;
    PipelineState<STAGES> reading, adding;
#if FACTORS
    const float* factors[IMAGES];  // of the next step, and how many terms are left
    int left;
#endif

    __device__ __forceinline__ Steps(u32 shared, int row)
        : shared(shared), place(swizzled(row + threadIdx.x % 16, threadIdx.x % 32 / 16)),
          barriers(shared + BARRIERS)
    {
    }

    __device__ __forceinline__ u32 begin_reading(Factors& by)
    {
#if FACTORS
        by.load(factors, left);
#pragma unroll
        for (const float*& of_row : factors) of_row += BK;
        left -= BK;
#endif
        mbarrier_wait(barriers.full(reading.stage), reading.parity);
        const u32 tile = shared + reading.stage * BYTES_STAGE;
        reading.next();
        return tile;
    }

    __device__ __forceinline__ void read(Rows& rows)
    {
        Factors by;
        const u32 tile = begin_reading(by);
        rows.read(tile, place, by);
    }

    // Adds the sums of a step to the total once they are complete, and releases the stage: for all lanes, whose reads
    // come before, although compute-sanitizer's racecheck sees only those of the lane that arrives (docs/debugging.md).
    __device__ __forceinline__ void end(float (&totals)[TN][4], const float (&sums)[TN][4],
                                        const Rows& rows)
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty(adding.stage));
        adding.next();
        if constexpr (IN_STEPS) rows.add_to(totals, sums);
    }

    __device__ __forceinline__ void add(float (&totals)[TN][4], bool more)
    {
        Factors by;
        const u32 tile = begin_reading(by);
        float own[TN][4];
        auto& sums = IN_STEPS ? own : totals;
        Rows rows;
        rows.read_and_multiply(sums, tile, place, more, by);
        wgmma_wait<0>();
        settle(sums);
        end(totals, own, rows);
    }

    // Multiplies a step that was read, and meanwhile reads the `following` one, if there is any.
    __device__ __forceinline__ void add_read(float (&totals)[TN][4], const Rows& rows,
                                             Rows& following, bool more, bool last)
    {
        float own[TN][4];
        auto& sums = IN_STEPS ? own : totals;
        rows.multiply(sums, shared + adding.stage * BYTES_STAGE + BYTES_A, more);
        if (!last) read(following);
        wgmma_wait<0>();
        settle(sums);
        end(totals, own, rows);
    }

    __device__ __forceinline__ void add_all(float (&totals)[TN][4], int count)
    {
        if constexpr (OVERLAP) {
            Rows even, odd;
            read(even);
            for (int step = 0; step < count; step += 2) {
                add_read(totals, even, odd, step > 0, step + 1 == count);
                if (step + 1 < count) add_read(totals, odd, even, true, step + 2 == count);
            }
        } else {
            for (int step = 0; step < count; ++step) add(totals, step > 0);
        }
    }
};

#if FACTORS
// The factors of the terms of images, one after the other; of each image there are this many rows.
struct ImageFactors {
    const float* all;
    int terms, pixels;

    // Those of sixteen rows from `row` on, some of which may be behind the last one, from term `first` on.
    __device__ __forceinline__ void scale(Steps& steps, int row, int rows, int first) const
    {
        const int term = first + threadIdx.x % 4;
        steps.left = terms - term;
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) {
            const int own = IMAGES == 1 ? row : row + threadIdx.x % 32 / 4 + i * 8;
            steps.factors[i] = all + (long long)(min(own, rows - 1) / pixels) * terms + term;
        }
    }
};
#else
struct ImageFactors {
    __device__ __forceinline__ void scale(Steps&, int, int, int) const {}
};
#endif
