// The main loop of products whose operands are both in halves: the warpgroups that multiply.
//
// Compile-time: as halves.cu has them.

// The first item of a block; the next ones are as far apart as there are blocks. Clusters are along y.
__device__ __forceinline__ int first_item() { return blockIdx.x * gridDim.y + blockIdx.y; }

// ── multiplying ─────────────────────────────────────────────────────────────────────────────────

struct Consumer {
    u32 shared;
    const volatile float* scales;  // of the rows of each stage
    int row;                       // of the thread's first one in the tile
    Pipeline<STAGES> barriers;
    PipelineState<STAGES> reading, adding;

    __device__ __forceinline__ explicit Consumer(unsigned char* memory)
        : shared(shared_address(memory)), scales((const float*)(memory + SCALES)), row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), barriers(shared + BARRIERS)
    {
    }

    // Issues the products of two steps, the small ones first.
    __device__ __forceinline__ void multiply(float (&sums)[TN][4])
    {
        uint64 of_a[STEPS], of_b[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            mbarrier_wait(barriers.full(reading.stage), reading.parity);
            const u32 tile = shared + reading.stage * BYTES_STAGE;
            of_a[step] = smem_descriptor(tile + threadIdx.x / 128 * 64 * 128);
            of_b[step] = smem_descriptor(tile + BYTES_A);
            reading.next();
        }
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                wgmma(sums, of_a[step] + 4 + k * 2, of_b[step] + k * 2, step + k > 0);
                wgmma(sums, of_a[step] + k * 2, of_b[step] + 4 + k * 2, true);
            }
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int k = 0; k < 2; ++k) wgmma(sums, of_a[step] + k * 2, of_b[step] + k * 2, true);
        wgmma_commit();
    }

    // Adds complete sums to the totals, and releases their stages.
    __device__ __forceinline__ void add(float (&totals)[TN][4], const float (&sums)[TN][4])
    {
        float scale[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) scale[half] = scales[adding.stage * BM + row + half * 8];
        const bool releases = is_first_behind(__float_as_uint(scale[0]) | __float_as_uint(scale[1]));
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (releases) mbarrier_arrive(barriers.empty(adding.stage));
            adding.next();
        }
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) totals[j][q] += sums[j][q] * scale[q / 2];
    }

    // Adds sums to the totals while the next two steps are multiplied.
    __device__ __forceinline__ void add_while(float (&totals)[TN][4], float (&sums)[TN][4], float (&following)[TN][4])
    {
        multiply(following);
        wgmma_wait<1>();
        settle(sums);
        add(totals, sums);
    }

    __device__ __forceinline__ void add_last(float (&totals)[TN][4], float (&sums)[TN][4])
    {
        wgmma_wait<0>();
        settle(sums);
        add(totals, sums);
    }

    __device__ __forceinline__ void add_all(float (&totals)[TN][4], int blocks)
    {
        if constexpr (DEFER) {
            float even[TN][4], odd[TN][4];
            multiply(even);
            for (; blocks > 2; blocks -= 2) {
                add_while(totals, even, odd);
                add_while(totals, odd, even);
            }
            if (blocks == 2) {
                add_while(totals, even, odd);
                add_last(totals, odd);
            } else {
                add_last(totals, even);
            }
        } else {
            for (int block = 0; block < blocks; ++block) {
                float sums[TN][4];
                multiply(sums);
                add_last(totals, sums);
            }
        }
    }
};
