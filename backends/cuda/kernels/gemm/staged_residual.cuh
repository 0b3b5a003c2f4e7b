// A residual in halves that is in the stages behind the steps of its tile: a stage has a step of 32 columns, the first of
// every two the scales of the rows.

struct StagedResidual {
    unsigned char* memory;
    const volatile float* scales;  // of the rows of each stage
    Pipeline<STAGES> barriers;
    PipelineState<STAGES>& turn;
    float scale[2];  // of this thread's rows

    __device__ __forceinline__ StagedResidual(unsigned char* memory, const volatile float* scales, u32 barriers,
                                              PipelineState<STAGES>& turn)
        : memory(memory), scales(scales), barriers(barriers), turn(turn)
    {
    }

    // Reads some eights of a block of columns, which come in order.
    template <int COUNT> __device__ __forceinline__ void load(float (&x)[COUNT][4], int eight)
    {
        static_assert(COUNT == 2 || COUNT == 4, "of one step");
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
        if (eight % 4 == 0) mbarrier_wait(barriers.full(turn.stage), turn.parity);
        if (eight == 0)
#pragma unroll
            for (int half = 0; half < 2; ++half) scale[half] = scales[turn.stage * BM + row + half * 8] / LESS;
        const unsigned char* tile = memory + turn.stage * BYTES_STAGE;
        Four found[COUNT / 2][2];
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                found[j / 2][half].load(eight + j, [&](int position) {
                    return tile + swizzled(row + half * 8, position / 8) + position % 8 * 2;
                });
        if (eight % 4 + COUNT == 4) {
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty(turn.stage));
            turn.next();
        }
#pragma unroll
        for (int j = 0; j < COUNT; j += 2)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                found[j / 2][half].add_up(x[j] + half * 2, x[j + 1] + half * 2, scale[half]);
    }
};
