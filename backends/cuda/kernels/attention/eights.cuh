// Rows of float32 in shared memory that are cut into halves in their places: eight of them are replaced by their high parts
// and then their low parts, in slabs of 64 columns, each of eight rows of 128 bytes in swizzled order.
//
// Compile-time: WARPS that copy and cut; VECTOR, elements per copy (1, 2, 4).

// Rows in shared memory, eight by eight.
template <int SIZE> struct Eights {
    static constexpr int SLABS = SIZE / 64, BYTES = 8 * SIZE * 4;
    static constexpr int COUNT = 2;  // rows of a thread at a time
    unsigned char* memory;
    int warp = threadIdx.x / 32, warps = WARPS;  // the number of this one among those that share the rows

    __device__ __forceinline__ float* row(int row) const { return (float*)(memory + row * SIZE * 4); }

    // Where a slab of parts, 0 high, 1 low, of eight rows begins.
    __device__ __forceinline__ static constexpr int slab(int part, int slab) { return (part * SLABS + slab) * 1024; }

    // Calls act(first row of a thread) for `count` rows, of which a warp has eight at a time.
    template <typename Act> __device__ __forceinline__ void each(int count, const Act& act) const
    {
#pragma unroll 1
        for (int first = warp * 8; first < count; first += warps * 8) act(first + int(threadIdx.x) % 32 / 8);
    }

    // Copies `count` rows from row `begin` on, each by eight threads; zeros from row `end` on.
    __device__ __forceinline__ void copy(int count, int begin, int end, const Source& from) const
    {
        each(count, [&](int first) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = first + 4 * i;
                const bool inside = begin + at < end;
                const float* const source = from(inside ? begin + at : 0);
#pragma unroll
                for (int column = threadIdx.x % 8 * VECTOR; column < SIZE; column += 8 * VECTOR) {
                    const bool exists = inside && column < from.size;
                    cp_async<VECTOR>(shared_address(row(at) + column), source + (exists ? column : 0), exists);
                }
            }
        });
    }

    // Where the parts of a row go.
    struct Store {
        unsigned char* eight;
        int row;

        __device__ __forceinline__ void operator()(int column, uint2 high, uint2 low) const
        {
            unsigned char* const to = eight + slab(0, column / 64) + swizzled(row, column % 64 / 8) + column % 8 * 2;
            *(uint2*)to = high;
            *(uint2*)(to + slab(1, 0)) = low;
        }
    };

    // Cuts `count` rows, a multiple of eight, which this warp has copied.
    __device__ __forceinline__ void cut(int count, float* inverses) const
    {
        each(count, [&](int first) {
            RowsToCut<COUNT, Store> rows;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int at = first + 4 * i;
                rows.from[i] = row(at);
                rows.store[i] = {memory + at / 8 * BYTES, at % 8};
            }
            const Inverses<COUNT> found = ::cut<SIZE>(rows);
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (threadIdx.x % 8 == 0) inverses[first + 4 * i] = found.at[i];
        });
    }
};
