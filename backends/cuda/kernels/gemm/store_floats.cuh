// The epilogues of a product with floating-point sums: bias and epilogue, in float32. Results are stored from registers, or
// those of several blocks are gathered in shared memory; see store_tile.cuh.

#include "gemm/store_tile.cuh"

__device__ __forceinline__ float2 neighbours(const float (&sums)[4], int row)
{
    return make_float2(sums[row * 2], sums[row * 2 + 1]);
}

__device__ __forceinline__ float2 neighbours(const u32 (&sums)[2], int row) { return halves_of(sums[row]); }

// Passes all sums of a thread to `take`, in pairs, with their row and column in the tile.
template <typename Sum, int COUNT, typename Take>
__device__ __forceinline__ void each_pair(const Sum (&sums)[TM][TN][COUNT], const Place& place, const Take& take)
{
    const int row = place.m + place.lane / 4, column = place.n + place.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                take(row + i * 16 + half * 8, column + j * 8, neighbours(sums[i][j], half));
}

// Through shared memory: partial sums, or those of all blocks of the cluster.
struct StoreTile {
    // Operands of the epilogue are read before the products, if registers are left beside the sums.
    static constexpr bool EARLY = SPLIT == CLUSTER || Finish::ONCE;
    Finish finish;
    Finish::Several operands;
    Inbox<BM, BN / 8, true> inbox;

    __device__ __forceinline__ StoreTile(void* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc,
                                         int batch_c)
        : finish{c, bias, z0, z1, m, n, ldc, batch_c, ROWS == MATRIX ? 0 : n}
    {
    }

    __device__ __forceinline__ void open(unsigned char* memory, const Block& block)
    {
        if constexpr (SPLIT != CLUSTER) return;
        inbox = {memory, block.split, block.splits};
        inbox.open();
    }
    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block& block)
    {
        int thread = threadIdx.x;
        pin(thread);  // behind the copies of `a`
        if constexpr (EARLY) finish.read(operands, first() + thread, last(), block);
    }

    template <typename Around = AsTheyAre>
    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block,
                                          const Place& warp, const Around& around = {})
    {
        if constexpr (SPLIT == CLUSTER) {
            inbox.wait_open();
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int row = warp.m + warp.lane / 4 + i * 16, item = warp.n / 8 + j;
                    inbox.send_pairs(row, row + 8, item, item, neighbours(sums.of[i][j], 0), neighbours(sums.of[i][j], 1));
                }
            inbox.wait_received();
        } else {
            cp_async_wait<0>();
            __syncthreads();
            each_pair(sums.of, warp, [&](int row, int column, float2 pair) {
                *(float2*)((float*)shared + row * PITCH + column) = pair;
            });
            __syncthreads();
        }
        if constexpr (!EARLY) finish.read(operands, first() + threadIdx.x, last(), block);
        finish.store_all(operands, first(), last(), block, [&](float (&values)[8], int item) {
            if constexpr (SPLIT == CLUSTER) inbox.add(values, item);
            else finish.read_sums(values, (const float*)shared + finish.row_of_item(item) * PITCH + finish.column_of_item(item));
        }, around);
    }

private:
    // The items that this block finishes.
    __device__ __forceinline__ int first() const { return SPLIT == CLUSTER ? inbox.begin() : 0; }
    __device__ __forceinline__ int last() const { return SPLIT == CLUSTER ? inbox.end() : ITEMS; }
};

// From the registers of the warps, which exchange them so that a lane has eight adjacent ones.
struct StoreWords {
    // Words of a lane, and of these, whose operands are in flight at once: before the products, if those are all.
    static constexpr int OF_ROWS = TN / 2, WORDS = TM * OF_ROWS, AT_ONCE = WORDS < 4 ? WORDS : 4;
    static constexpr bool EARLY = WORDS == AT_ONCE;
    static_assert(TN % 2 == 0, "lanes exchange the sums of two tiles of eight columns");
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;
    long long at[AT_ONCE];  // where words go, -1 if nowhere
    Operands<8> operands[AT_ONCE];

    __device__ __forceinline__ StoreWords(R* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int ldc, int batch_c)
        : c(c), bias(bias), z0(z0), z1(z1), m(m), n(n), ldc(ldc), batch_c(batch_c)
    {
    }

    __device__ __forceinline__ void open(unsigned char*, const Block&) const {}
    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block& block)
    {
        Place place;
        pin(place.lane);  // behind the copies of `a`
        if constexpr (EARLY) read(0, block, place);
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char*, const Block& block, const Place& place)
    {
        store(sums, block, place, [](int, const Neighbours<R, 8>&) {});
    }

protected:
    // The same; `also` gets each word of results and its number.
    template <typename Also>
    __device__ __forceinline__ void store(const Sums& sums, const Block& block, const Place& place, const Also& also)
    {
#pragma unroll
        for (int first = 0; first < WORDS; first += AT_ONCE) {
            if constexpr (!EARLY) read(first, block, place);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int word = first + i;
                if (WORDS % AT_ONCE && word >= WORDS) break;
                const auto& tiles = sums.of[word / OF_ROWS];
                const int j = word % OF_ROWS * 2;
                const float2 left[2] = {neighbours(tiles[j], 0), neighbours(tiles[j], 1)};
                const float2 right[2] = {neighbours(tiles[j + 1], 0), neighbours(tiles[j + 1], 1)};
                float values[8];
                eight_of_row(values, left, right);
                if (at[i] < 0) continue;
                const Neighbours<R, 8> results = with_epilogue(values, operands[i]);
                keep(c + at[i], results, n - column_of(word, block, place));
                also(word, results);
            }
        }
    }

private:
    static __device__ __forceinline__ int column_of(int word, const Block& block, const Place& place)
    {
        return block.n0 + place.n + (word % OF_ROWS * 2 + place.lane % 4 / 2) * 8;
    }

    // Finds the places of some words, and reads their operands.
    __device__ __forceinline__ void read(int first, const Block& block, const Place& place)
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int word = first + i, column = column_of(word, block, place);
            const int row = block.m0 + place.m + word / OF_ROWS * 16 + place.lane % 2 * 8 + place.lane / 4;
            at[i] = -1;
            if ((WORDS % AT_ONCE && word >= WORDS) || row >= m || column >= n) continue;
            at[i] = (long long)block.batch * batch_c + (long long)row * ldc + column;
            const int channel = (ROWS == MATRIX ? 0 : block.batch * n) + column;
            operands[i] = operands_at<8>(at[i], row, channel, n - column, bias, z0, z1);
        }
    }
};

// From the registers of the warps: the means of the columns of a tile that has all rows.
struct StoreMeans {
    static constexpr int BANDS = BM / (TM * 16);          // of rows that a warp has
    static constexpr bool EARLY = TM * TN <= 4;           // operands are read before the products, as registers allow
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;
    Operands<2> operands[EARLY ? TM * TN : 1][2];

    __device__ __forceinline__ void open(unsigned char*, const Block&) const {}
    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block& block)
    {
        Place place;
        pin(place.lane);  // behind the copies of `a`
        if constexpr (!EARLY) return;
#pragma unroll
        for (int i = 0; i < TM * TN; ++i) read(operands[i], i / TN, i % TN, block, place);
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block, const Place& place)
    {
        float* const totals = (float*)shared;
        cp_async_wait<0>();
        __syncthreads();  // the stages are read
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            float2 total = {0, 0};
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if constexpr (!EARLY) read(operands[0], i, j, block, place);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float2 pair = neighbours(sums.of[i][j], half);
                    const float values[2] = {pair.x, pair.y};
                    const Neighbours<R, 2> results = with_epilogue(values, operands[EARLY ? i * TN + j : 0][half]);
                    if (row_of(i, half, block, place) >= m) continue;
                    total.x += float(results.at[0]), total.y += float(results.at[1]);
                }
            }
#pragma unroll
            for (int other = 4; other < 32; other *= 2) {  // the lanes with the same columns
                total.x += __shfl_xor_sync(~0u, total.x, other);
                total.y += __shfl_xor_sync(~0u, total.y, other);
            }
            const int column = place.n + j * 8 + place.lane * 2;
            if (place.lane < 4) *(float2*)(totals + place.m / (TM * 16) * BN + column) = total;
        }
        __syncthreads();
        for (int column = threadIdx.x; column < BN && block.n0 + column < n; column += THREADS) {
            float total = 0;
#pragma unroll
            for (int band = 0; band < BANDS; ++band) total += totals[band * BN + column];
            c[block.batch * n + block.n0 + column] = R(total / m);
        }
    }

private:
    static __device__ __forceinline__ int row_of(int i, int half, const Block& block, const Place& place)
    {
        return block.m0 + place.m + i * 16 + half * 8 + place.lane / 4;
    }

    // The operands of two adjacent results in two rows.
    __device__ __forceinline__ void read(Operands<2> (&of)[2], int i, int j, const Block& block, const Place& place) const
    {
        const int column = block.n0 + place.n + j * 8 + place.lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of(i, half, block, place);
            const long long at = (long long)block.batch * batch_c + (long long)row * ldc + column;
            if (row < m && column < n) of[half] = operands_at<2>(at, row, column, n - column, bias, z0, z1);
        }
    }
};

// From the registers of the warps.
struct StoreRegisters {
    R* c;
    const Z *bias, *z0, *z1;
    int m, n, ldc, batch_c;

    __device__ __forceinline__ void open(unsigned char*, const Block&) const {}
    __device__ __forceinline__ void prepare(LoaderA&) const {}
    __device__ __forceinline__ void begin(const Block&) const {}

    template <typename S>
    __device__ __forceinline__ void store(const S& sums, unsigned char*, const Block& block, const Place& warp) const
    {
        Results results = {c, bias, z0, z1, m, n, ldc, (long long)block.batch * batch_c,
                           ROWS == MATRIX ? 0 : block.batch * n};
        if constexpr (SPLIT == PARTIAL) {
            results.start = (long long)blockIdx.z * m * n;
            results.ldc = n;
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
            store_sums(results, sums.of[i], block.m0 + warp.m + i * 16, block.n0 + warp.n);
    }
};
