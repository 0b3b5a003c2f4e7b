// The epilogue of results that are stored in halves, four adjacent ones at a time: sixteen neighbouring threads have a row of
// a tile of 64 columns.
//
// Compile-time, besides those of store_tile.cuh: CONSUMERS, the threads that store.

struct Fours {
    // Those of a thread, at most; whether all have the same operands, as they are in the same columns; and whether there are
    // registers for the operands of all.
    static constexpr int MOST = ((SPLIT == CLUSTER ? ITEMS : 2 * ITEMS) + CONSUMERS - 1) / CONSUMERS;
    static constexpr bool BY_COLUMN = (Z0 == 0 || Z0 == 2) && (Z1 == 0 || Z1 == 2);
    static constexpr bool ALIKE = BY_COLUMN && CONSUMERS % (BN / 4) == 0, ONCE = ALIKE || MOST <= 4;
    int begin, end;
    Operands<4> of[ALIKE || !ONCE ? 1 : MOST];

    // Those from `begin` to `end`.
    __device__ __forceinline__ Fours(int begin, int end) : begin(begin), end(end) {}

    // Reads the operands of a thread's.
    __device__ __forceinline__ void read(const Finish& finish, const Block& block)
    {
#pragma unroll
        for (int i = 0; i < (ALIKE ? 1 : MOST); ++i) of[i] = operands(finish, block, begin + i * CONSUMERS + threadIdx.x);
    }

    // Calls `store` with each of a thread's, all threads of a warp at a time: its number, its row and first column in the
    // result, whether it is there, and its operands.
    template <typename Store>
    __device__ __forceinline__ void each(const Finish& finish, const Block& block, const Store& store) const
    {
#pragma unroll(MOST <= 4 ? MOST : 1)
        for (int i = 0; i < MOST; ++i) {
            const int item = begin + i * CONSUMERS + threadIdx.x, row = row_of(item, block), column = column_of(item, block);
            const bool there = is_there(finish, block, item);
            if constexpr (ALIKE) store(item, row, column, there, of[0]);
            else if constexpr (ONCE) store(item, row, column, there, of[i]);
            else store(item, row, column, there, operands(finish, block, item));
        }
    }

private:
    static __device__ __forceinline__ int row_of(int item, const Block& block) { return row_of_result(block, item / (BN / 4)); }
    static __device__ __forceinline__ int column_of(int item, const Block& block) { return block.n0 + item % (BN / 4) * 4; }

    __device__ __forceinline__ bool is_there(const Finish& finish, const Block& block, int item) const
    {
        return item < end && row_of(item, block) < finish.m && column_of(item, block) < finish.n;
    }

    __device__ __forceinline__ Operands<4> operands(const Finish& finish, const Block& block, int item) const
    {
        if (!is_there(finish, block, item)) return {};
        const int row = row_of(item, block), column = column_of(item, block);
        return operands_at<4>((long long)row * finish.ldc + column, row, column, finish.n - column, finish.bias, finish.z0,
                              finish.z1);
    }
};
