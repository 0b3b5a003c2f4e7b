// The epilogue of results that are stored in halves, four adjacent ones at a time: sixteen neighbouring threads have a row of
// a tile of 64 columns.
//
// Compile-time, besides those of store_tile.cuh: CONSUMERS, the threads that store. Macros: see store_registers.cuh.

// What a kernel does with four results besides storing them: nothing.
struct OnlyStored {
    __device__ __forceinline__ void operator()(const float (&results)[4], int row, int column, bool there) const {}
};

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

    // Stores a thread's in halves, and, with PLAIN, as they are. `sums` writes those of an item to an array; `also` gets the
    // results, their row and first column, and whether they are there.
    template <typename Sums, typename Also = OnlyStored>
    __device__ __forceinline__ void store(const Finish& finish, const Block& block, const RowsInHalves& to, const Sums& sums,
                                          const Also& also = {}) const
    {
        each(finish, block, [&](int item, int row, int column, bool there, const Operands<4>& with) {
            float results[4] = {};
            if (there) {
                float four[4] = {};
                sums(four, item);
                const auto found = with_epilogue<4>(four, with);
                if (PLAIN) keep((R*)finish.c + (long long)row * finish.ldc + column, found, finish.n - column);
#pragma unroll
                for (int q = 0; q < 4; ++q) results[q] = found.at[q];
            }
            also(results, row, column, there);
            store_halves(to, results, there ? row : to.rows, column);
        });
    }

private:
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
