// Products of 16-bit floats of back_to_back.cu: the copy engine brings all operands as tensor maps say.

constexpr int BOXES = (BN + 255) / 256;  // that bring a step of the weights of the second product

// What one thread requests of the copy engine.
struct Requests {
    const TensorMap *a, *w, *next;
    u32 shared;
    int row, column;  // the first ones of the block
    static constexpr const float *scales = nullptr, *next_scales = nullptr;
    static constexpr int rows_w = 0, rows_next = 0;

    __device__ __forceinline__ u32 full(int step) const { return shared + BARRIERS + step * 8; }

    // Brings weights of some steps of the second product.
    __device__ __forceinline__ void bring_next(int begin, int end) const
    {
        if (begin == end) return;
        mbarrier_expect_tx(full(next_full(begin)), (end - begin) * BYTES_NEXT);
        for (int step = begin; step < end; ++step)
#pragma unroll
            for (int box = 0; box < BOXES; ++box)
                tma_load_2d(shared + next_at(step) + box * (BYTES_NEXT / BOXES), next, full(next_full(step)),
                            column + step * STEP, box * (BN / BOXES));
    }

    // Brings weights of the first product, before the preceding kernel has ended.
    __device__ __forceinline__ void begin() const
    {
        prefetch_map(a);
        for (int step = 0; step < STEPS; ++step) {
            mbarrier_expect_tx(full(step), BYTES_A + BYTES_W);
            tma_load_2d(shared + OF_W + step * BYTES_W, w, full(step), step * STEP, column);
        }
    }

    // Brings all else.
    __device__ __forceinline__ void end() const
    {
        for (int step = 0; step < STEPS; ++step) tma_load_2d(shared + step * BYTES_A, a, full(step), step * STEP, row);
        bring_next(0, EARLY);
    }
};

__device__ __forceinline__ void bring_rows(unsigned char*, const Requests&, int) {}  // the copy engine does

// The factors of sums of a thread's columns: none.
__device__ __forceinline__ void find_scales(float (&to)[2], const float*, int, int) { to[0] = to[1] = 1; }

// Products of tiles of 64 rows of weights.
template <int> struct Products {
    Sums sums = {};

    // Adds those of a step.
    __device__ __forceinline__ void add(unsigned char*, u32 weights, u32 rows, int)
    {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma(sums, smem_descriptor(weights) + i * 2, smem_descriptor(rows) + i * 2);
        wgmma_commit();
    }

    // Waits for all of them.
    __device__ __forceinline__ void end()
    {
        wgmma_wait<0>();
        settle(sums);
    }
};

// Stores eight adjacent terms of a row in tiles of 64 terms.
__device__ __forceinline__ void put(unsigned char* shared, int tiles, int, int row, int word, const Neighbours<R, 8>& terms,
                                    bool there)
{
    if (there) *(Neighbours<R, 8>*)(shared + tiles + word / 8 * BYTES_A + swizzled(row, word % 8)) = terms;
}
