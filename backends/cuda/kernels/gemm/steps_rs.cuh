// The main loop of a warpgroup that multiplies 64 rows of `a` in registers by tiles of `b`: it takes the stages of a pipeline
// as they are filled, with BM rows of `a` and then the tiles of `b` in each, and releases them.
//
// Compile-time: STAGES; BYTES_STAGE; BYTES_A; TN, eights of columns; BARRIERS, where those of the pipeline are; OVERLAP, whether
// a step is read while the one before is multiplied.

// Accumulates the steps of one work item after another.
struct Steps {
    u32 shared, place;
    Pipeline<STAGES> barriers;
    PipelineState<STAGES> reading, adding;

    __device__ __forceinline__ Steps(u32 shared, int row)
        : shared(shared), place(swizzled(row + threadIdx.x % 16, threadIdx.x % 32 / 16)),
          barriers(shared + BARRIERS)
    {
    }

    __device__ __forceinline__ u32 begin_reading()
    {
        mbarrier_wait(barriers.full(reading.stage), reading.parity);
        const u32 tile = shared + reading.stage * BYTES_STAGE;
        reading.next();
        return tile;
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
        const u32 tile = begin_reading();
        float own[TN][4];
        auto& sums = IN_STEPS ? own : totals;
        Rows rows;
        rows.read_and_multiply(sums, tile, place, more);
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
        if (!last) following.read(begin_reading(), place);
        wgmma_wait<0>();
        settle(sums);
        end(totals, own, rows);
    }

    __device__ __forceinline__ void add_all(float (&totals)[TN][4], int count)
    {
        if constexpr (OVERLAP) {
            Rows even, odd;
            even.read(begin_reading(), place);
            for (int step = 0; step < count; step += 2) {
                add_read(totals, even, odd, step > 0, step + 1 == count);
                if (step + 1 < count) add_read(totals, odd, even, true, step + 2 == count);
            }
        } else {
            for (int step = 0; step < count; ++step) add(totals, step > 0);
        }
    }
};
