// c[m][n] = epilogue(sum over k of a[m][k] * b[n][k] + bias[n]) on Hopper, for matrices of many rows. Like MATRIX of
// tma.cu, but TMA also loads the operands of the epilogue during the mainloop, and stores the results during the
// next mainloop. With ACROSS, `b` is b[k][n]. With STACKED, there are `products` of them, of one `a` if SHARED_A.
//
// Persistent and warp-specialized: a CTA processes tile after tile. One warp loads tiles of `b`, one those of `a`, and
// one manages the buffers of results in shared memory, each of 64 columns of a tile: it first loads an operand of
// `epilogue` into a buffer, and stores the results that the consumer warpgroups, GROUPS of them, write there instead,
// while they finish the next columns. The groups share a tile (cooperative); or, with PING_PONG, each has its own tiles, and one runs its epilogue while the other multiplies
// (ping-pong).
//
// Tiles of `a` and `b` have rows of 64 elements, as do results and b[k][n]: one strip of rows for every 64
// columns, all in swizzled order.
//
// Compile-time: GROUPS; BLOCKS, of 64 rows of a group; BN; STAGES; PING_PONG; PLACES, the buffers for results;
// ACROSS; PRODUCTS, one, or two whose results the epilogue combines: every second eight columns of b belong to the
// second; CONSTANT and CONSTANT_A, whether `b` and `a` never change; FEW and MANY, registers of a producer and of a consumer thread; T, of
// operands, and R, of results; BIAS, Z0 and Z1 as in multistage.cu, at most one of which has the layout of the
// result, or 5 for one row of the operand for all rows of a sample, of which a group has those of one only, or 3 or 6 for
// one element per row; PERIOD, the rows after which an operand with the layout of the result repeats, or 0; and the wgmma
// instructions. Results wider than operands do not fit the buffers: threads store them. Macro: SECOND, see epilogue.cuh.

#include "ptx/pdl.cuh"
#include "order.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"

constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 128;
constexpr int SHARING = PING_PONG ? 1 : GROUPS;  // groups that have a tile together
constexpr int ROWS = BLOCKS * 64, BM = SHARING * ROWS, TN = BN / 8;
constexpr int BYTES_A = BM * BK * 2, BYTES_B = BN * BK * 2;
constexpr int WIDTH = BN / PRODUCTS;                    // of the results of a tile
constexpr int STRIP = ROWS * 128, STRIPS = WIDTH / 64;  // of the results of a group
constexpr int STRIP_B = BK * 128;                       // of b[k][n]
constexpr bool ROWS0 = Z0 == 3 || Z0 == 6, ROWS1 = Z1 == 3 || Z1 == 6;  // operands with one element per row
constexpr bool ALONG = Z0 == 1 || Z1 == 1, WIDER = sizeof(R) > sizeof(T);
constexpr bool STAGED = WIDER && !ALONG;     // results pass through shared memory as rows
constexpr int PIECES = STAGED ? 1 : STRIPS;  // of a tile, each of which takes a place
constexpr int PITCH = BN + 8, CHUNK = 8 * PITCH, CHUNKS = 2;  // rows of wider results that pass at a time, of a warp
constexpr int PLACE = STAGED ? 4 * CHUNKS * CHUNK * 4 : SHARING * STRIP;
constexpr bool AHEAD = !STAGED && BLOCKS * BN <= 256;  // operands of a strip are read one ahead, as registers allow
// Sums begin with the bias, which is read while another group multiplies. Otherwise a turn ends with two steps under
// way, not one, which hides how long it takes to begin; begun sums take as long or longer with that.
constexpr bool BEGUN = BIAS && (PING_PONG || ROTATES) && PRODUCTS == 1, EARLY = PING_PONG && !BEGUN;
static_assert(!STAGED || PING_PONG, "rows of wider results pass while another group multiplies");
constexpr int CYCLE = PING_PONG ? GROUPS * PIECES : PLACES;  // pieces after which their barriers are used again
static_assert(CYCLE >= PLACES, "barriers of a piece are free before it is prepared");

// The barriers: of the stages of `a` and of `b`; for each group's part of the results of CYCLE pieces, that it is free
// and that it is complete; and of each group, that it is its turn.
struct Barriers {
    Pipeline<STAGES> of_a, of_b;
    u32 ready, done, order;
    __device__ __forceinline__ explicit Barriers(u32 at)
        : of_a(at), of_b(at + STAGES * 16), ready(at + STAGES * 32),
          done(ready + CYCLE * SHARING * 8), order(done + CYCLE * SHARING * 8) {}

    __device__ __forceinline__ void begin() const
    {
        for (int i = 0; i < CYCLE * SHARING; ++i) {
            mbarrier_init(ready + i * 8, 1);
            mbarrier_init(done + i * 8, 4);
        }
        for (int i = 0; i < GROUPS; ++i) mbarrier_init(order + i * 8, 4);
        of_a.begin(1, SHARING * 4);
        of_b.begin(1, SHARING * 4);
    }
};

struct Corner {
    int m, n, product;
};

// The schedule of a CTA: tiles, one product after the other, in patches of several rows of tiles; those of a patch column by
// column.
struct Work {
    int tiles_m, tiles_n, patch, steps, products;

    __device__ __forceinline__ int tiles() const { return tiles_m * tiles_n * products; }
    __device__ __forceinline__ Corner corner(int number) const
    {
        const int all = in_order(number, tiles()), product = STACKED ? all / (tiles_m * tiles_n) : 0;
        const int tile = all - product * tiles_m * tiles_n;
        const int above = tile / (patch * tiles_n) * patch, within = tile - above * tiles_n;
        const int height = min(patch, tiles_m - above);
        return {(above + within % height) * BM, within / height * BN, product};
    }
};

// ── what single threads do ──────────────────────────────────────────────────────────────────────

__device__ __forceinline__ void load_box(u32 to, const TensorMap* map, u32 barrier, int x, int y, int product)
{
    if constexpr (STACKED) tma_load_3d(to, map, barrier, x, y, product);
    else tma_load_2d(to, map, barrier, x, y);
}

__device__ __forceinline__ void store_box(const TensorMap* map, u32 from, int x, int y, int product)
{
    if constexpr (STACKED) tma_store_3d(map, from, x, y, product);
    else tma_store_2d(map, from, x, y);
}

template <bool OF_A>
__device__ __forceinline__ void fetch(const TensorMap* map, u32 to, const Pipeline<STAGES>& ring,
                                      const Work& work)
{
    constexpr int BYTES = OF_A ? BYTES_A : BYTES_B;
    PipelineState<STAGES> pipe;
    bool waited = OF_A ? CONSTANT_A : CONSTANT;  // for the preceding kernel, which is done as late as possible
    for (int tile = blockIdx.x; tile < work.tiles(); tile += gridDim.x) {
        const Corner corner = work.corner(tile);
        for (int step = 0; step < work.steps; ++step) {
            const u32 full = ring.full(pipe.stage), here = to + pipe.stage * BYTES;
            mbarrier_wait(ring.empty(pipe.stage), pipe.parity ^ 1);
            mbarrier_expect_tx(full, BYTES);
            if (!waited) grid_dependency_sync(), waited = true;
            if constexpr (ACROSS && !OF_A)
                for (int i = 0; i < BN / 64; ++i)
                    load_box(here + i * STRIP_B, map, full, corner.n + i * 64, step * BK, corner.product);
            else
                load_box(here, map, full, step * BK, OF_A ? corner.m : corner.n, OF_A && SHARED_A ? 0 : corner.product);
            pipe.next();
        }
    }
}

struct Round {  // which of the block's pieces of tiles
    int count;
    __device__ __forceinline__ int tile() const { return blockIdx.x + count / PIECES * gridDim.x; }
    __device__ __forceinline__ int column() const { return count % PIECES * 64; }
    __device__ __forceinline__ int place() const { return count % PLACES * PLACE; }
    __device__ __forceinline__ int barrier(int part) const { return (count % CYCLE * SHARING + part) * 8; }
    __device__ __forceinline__ u32 parity() const { return count / CYCLE & 1; }
};

// Loads the operands of the epilogue, and stores the results.
__device__ __forceinline__ void keep_results(const TensorMap* c, const TensorMap* z, u32 places,
                                             const Barriers& barriers, const Work& work, int rotated)
{
    const auto prepare = [&](Round round) {
        if (round.tile() >= work.tiles()) return;
        const Corner corner = work.corner(round.tile());
        for (int part = 0; part < SHARING; ++part) {
            const u32 ready = barriers.ready + round.barrier(part);
            if constexpr (ALONG) {
                mbarrier_expect_tx(ready, STRIP);
                load_box(places + round.place() + part * STRIP, z, ready, corner.n + round.column(),
                         (corner.m + part * ROWS) % (PERIOD ? PERIOD : 1 << 30), corner.product);
            } else {
                mbarrier_arrive(ready);
            }
        }
    };
    grid_dependency_sync();
    for (int i = 0; i < PLACES - 1; ++i) prepare({i});
    for (Round round = {0}; round.tile() < work.tiles(); ++round.count) {
        prepare({round.count + PLACES - 1});
        const Corner corner = work.corner(round.tile());
        for (int part = 0; part < SHARING; ++part) {
            mbarrier_wait(barriers.done + round.barrier(part), round.parity());
            const int column = corner.n / PRODUCTS + round.column(), row = corner.m + part * ROWS;
            const u32 from = places + round.place() + part * STRIP;
            if (ROTATES && column >= rotated)
                tma_store_2d(z, from, column - rotated, row);
            else if constexpr (!WIDER)
                store_box(c, from, column, row, corner.product);
        }
        tma_store_wait();
    }
}

// ── the end of a tile ───────────────────────────────────────────────────────────────────────────

struct alignas(4) Pair {
    T at[2];
};

__device__ __forceinline__ Pair pair_at(const T* from, int column, bool inside)
{
    const u32 word = inside ? __ldg((const u32*)(from + column)) : 0;
    return (const Pair&)word;
}

struct alignas(2 * sizeof(R)) Result {
    R at[2];
};

#include "gemm/rotated_strip.cuh"

// Applies the epilogue to the sums of a result, one of each product; their operands have this index.
template <typename Sums>
__device__ __forceinline__ R result_of(const Sums& sums, int index, const T* z0, const T* z1)
{
    if constexpr (PRODUCTS == 1) return epilogue(sums[0], index, 0, index, z0, z1);
    else return epilogue(sums[0], sums[1], index, 0, index, z0, z1);
}

// The operands of a strip that are the same in all rows, of one thread.
struct StripOperands {
    Pair shift[8][PRODUCTS], first[8], second[8];

    // Those of columns from `n0` on in b, of which there are `n`.
    __device__ __forceinline__ void read(int strip, const T* bias, const T* z0, const T* z1, int n0, int n)
    {
        const int lane = threadIdx.x % 32, count = n / PRODUCTS, begin = n0 / PRODUCTS + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int eight = strip * 8 + j, column = begin + eight * 8;
#pragma unroll
            for (int p = 0; p < PRODUCTS; ++p) {
                const int of_b = n0 + (eight * PRODUCTS + p) * 8 + lane % 4 * 2;
                if constexpr (BIAS && !BEGUN) shift[j][p] = pair_at(bias, of_b, of_b < n);
            }
            if constexpr (Z0 == 2 || Z0 == 5) first[j] = pair_at(z0, column, column < count);
            if constexpr (Z1 == 2 || Z1 == 5) second[j] = pair_at(z1, column, column < count);
        }
    }
};

// The operands of a group's results that are the same in a whole row, of one thread.
struct RowOperands {
    Pair first[BLOCKS][2], second[BLOCKS][2];

    // Those of row `m0` and following of a product, whose rows end with `m`; `before` are in front of it.
    __device__ __forceinline__ void read(const T* z0, const T* z1, int m0, int m, int before, int ldc)
    {
        const int row = m0 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int line = row + i * 64 + half * 8;
                if (line >= m) continue;
                const long long at = (long long)(before + line) * ldc;
                if constexpr (Z0 == 3) first[i][half].at[0] = first[i][half].at[1] = z0[line];
                if constexpr (Z1 == 3) second[i][half].at[0] = second[i][half].at[1] = z1[line];
                if constexpr (Z0 == 6) first[i][half].at[0] = first[i][half].at[1] = z0[place0(at)];
                if constexpr (Z1 == 6) second[i][half].at[0] = second[i][half].at[1] = z1[place1(at)];
            }
    }
};

// Finishes a strip of the results of a group in `place`; wider results are stored to row `m0` and following of c.
// Columns count from `n0` in b, and there are `n` of them.
__device__ __forceinline__ void epilogue_strip(const float (&sums)[BLOCKS][TN][4], int strip,
                                               const StripOperands& with, const RowOperands& of_rows,
                                               unsigned char* place, R* c, int m0, int m, int n0, int n, int ldc)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane / 4;
    unsigned char* const mine = place + (warp * 16 + row) * 128 + lane % 4 * 4;
    const int count = n / PRODUCTS, begin = n0 / PRODUCTS + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Pair* const at = (Pair*)(mine + i * 8192 + half * 1024 + (j ^ row) * 16);
                const Pair found = ALONG ? *at : Pair{};
                const Pair &x = Z0 == 1 ? found : ROWS0 ? of_rows.first[i][half] : with.first[j];
                const Pair &y = Z1 == 1 ? found : ROWS1 ? of_rows.second[i][half] : with.second[j];
                Result result;
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    float own[PRODUCTS];
#pragma unroll
                    for (int p = 0; p < PRODUCTS; ++p) {
                        const float sum = sums[i][(strip * 8 + j) * PRODUCTS + p][half * 2 + q];
                        own[p] = BIAS && !BEGUN ? sum + float(with.shift[j][p].at[q]) : sum;
                    }
                    result.at[q] = result_of(own, q, x.at, y.at);
                }
                const int line = m0 + i * 64 + warp * 16 + half * 8 + row;
                const int column = begin + (strip * 8 + j) * 8;
                if constexpr (!WIDER)
                    *(Result*)at = result;
                else if (line < m && column < count)
                    *(Result*)(c + (long long)line * ldc + column) = result;
            }
}

// The same for results that are wider than operands, none of which has their layout. Rows may begin anywhere, so tensor
// maps cannot describe them. Eight rows at a time pass through a chunk of the warp's part of `place`, in which they are
// shifted as in global memory: then bulk copies of whole words of 16 bytes store them, all but the ends of a row.
__device__ __forceinline__ void epilogue_rows(float (&sums)[BLOCKS][TN][4], unsigned char* place,
                                              R* c, const T* bias, const T* z0, const T* z1,
                                              const RowOperands& of_rows, int m0, int m, int n0, int n, int ldc)
{
    static_assert(!WIDER || sizeof(R) == 4, "words of four results");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int part = 0; part < BN / 32; ++part) {  // operands are loaded before anything is stored
        float shift[8] = {};
        T first[8] = {}, second[8] = {};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int column = n0 + part * 32 + j / 2 * 8 + lane % 4 * 2 + j % 2;
            if (BIAS && !BEGUN && column < n) shift[j] = float(bias[column]);
            if ((Z0 == 2 || Z0 == 5) && column < n) first[j] = z0[column];
            if ((Z1 == 2 || Z1 == 5) && column < n) second[j] = z1[column];
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float& sum = sums[i][part * 4 + j / 2][half * 2 + j % 2];
                    const float own[PRODUCTS] = {BIAS && !BEGUN ? sum + shift[j] : sum};
                    sum = result_of(own, 0, ROWS0 ? of_rows.first[i][half].at : first + j,
                                    ROWS1 ? of_rows.second[i][half].at : second + j);
                }
    }
    const int row = lane / 4, quarter = lane % 4, count = min(BN, n - n0);
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            R* const mine = (R*)place + (warp * CHUNKS + half) * CHUNK + row * PITCH;
            const int line = m0 + i * 64 + warp * 16 + half * 8 + row;
            R* const to = c + (long long)line * ldc + n0;
            const int ahead = (unsigned long long)to / sizeof(R) % 4, head = -ahead & 3;
            if (i) {  // the chunk is free
                bulk_store_wait<CHUNKS - 1>();
                __syncwarp();
            }
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int q = 0; q < 2; ++q) mine[ahead + j * 8 + quarter * 2 + q] = sums[i][j][half * 2 + q];
            fence_proxy_async();
            __syncwarp();
            if (line < m) {
                const int body = count > head ? (count - head) & ~3 : 0, last = head + body + quarter;
                if (quarter < min(head, count)) to[quarter] = mine[ahead + quarter];
                if (last < count) to[last] = mine[ahead + last];
                if (quarter == 0 && body) bulk_store(to + head, shared_address(mine + ahead + head), body * 4);
            }
            bulk_store_commit();
        }
    bulk_store_wait<0>();
}

#ifdef SECOND
// Stores the second results of those of a warp that `epilogue_strip` has left in `place`.
__device__ __forceinline__ void store_second(const unsigned char* place, int strip, R* to, const T* bias, int m0, int m, int n0, int n,
                                             int ldc)
{
    struct alignas(16) Eight {
        R at[8];
    };
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 8, column = n0 + strip * 64 + lane % 8 * 8;
#ifdef SECOND_PAIRS
    struct alignas(16) Pairs {
        float2 at[8];
    };
    Pairs by = {};
    if (column < n) by = *(const Pairs*)((const float2*)((const char*)bias + SECOND_PAIRS) + column);
#endif
    __syncwarp();
#pragma unroll
    for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
        for (int row = first; row < first + 16; row += 4) {
            if (m0 + i * 64 + row >= m || column >= n) continue;
            Eight results = *(const Eight*)(place + i * 8192 + row * 128 + (lane % 8 ^ row % 8) * 16);
#pragma unroll
            for (int q = 0; q < 8; ++q) {
                float value = float(results.at[q]);
#ifdef SECOND_PAIRS
                value = value * by.at[q].x + by.at[q].y;
#endif
                results.at[q] = second::epilogue(value, 0, 0, 0, nullptr, nullptr);
            }
            *(Eight*)(to + (long long)(m0 + i * 64 + row) * ldc + column) = results;
        }
}
#endif

// The sums of a tile before its first product: zeros, or the bias of every column from `n0` on.
__device__ __forceinline__ void begin(float (&sums)[BLOCKS][TN][4], const T* bias, int n0, int n)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const int column = n0 + j * 8 + threadIdx.x % 4 * 2;
        const Pair shift = BEGUN ? pair_at(bias, column, column < n) : Pair{};
#pragma unroll
        for (int i = 0; i < BLOCKS; ++i)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[i][j][q] = BEGUN ? float(shift.at[q % 2]) : 0;
    }
}

// ── the kernel ──────────────────────────────────────────────────────────────────────────────────

extern "C" __global__ void __launch_bounds__(THREADS, 1)
mma_linear(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
           const __grid_constant__ TensorMap c, const __grid_constant__ TensorMap z, R* y, const T* bias,
           const T* z0, const T* z1, const long long* positions, Turns turns, int m, int n, int ldc, int tiles_m,
           int tiles_n, int patch, int steps, int products)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const u32 tiles_a = shared_address(shared), tiles_b = tiles_a + STAGES * BYTES_A;
    unsigned char* const results = shared + STAGES * (BYTES_A + BYTES_B);
    const Barriers barriers(shared_address(results) + PLACES * PLACE);
    const Work work = {tiles_m, tiles_n, patch, steps, products};
    if (threadIdx.x == 0) barriers.begin();
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<FEW>();
        if (threadIdx.x == CONSUMERS)
            fetch<false>(&b, tiles_b, barriers.of_b, work);
        if (threadIdx.x == CONSUMERS + 32)
            fetch<true>(&a, tiles_a, barriers.of_a, work);
        if (threadIdx.x == CONSUMERS + 64)
            keep_results(&c, &z, shared_address(results), barriers, work, turns.columns);
    } else {
        setmaxnreg_inc<MANY>();
        grid_dependency_sync();
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
        const int part = PING_PONG ? 0 : group, own = PING_PONG ? group : 0;
        PipelineState<STAGES> pipe;
        if constexpr (PING_PONG) pipe.skip(own * steps);
        for (Round round = {own * PIECES}; round.tile() < work.tiles();
             round.count += PING_PONG ? (GROUPS - 1) * PIECES : 0) {
            Corner corner = {};
            const T *of_group0 = z0, *of_group1 = z1;  // with the row of its sample
            const auto find = [&] {
                corner = work.corner(round.tile());
                const int row = corner.m + part * ROWS;
                const long long begin = row < m ? (long long)(corner.product * m + row) * ldc : 0;
                if constexpr (Z0 == 5) of_group0 = z0 + place0(begin);
                if constexpr (Z1 == 5) of_group1 = z1 + place1(begin);
            };
            StripOperands with = {};
            RowOperands of_rows = {};
            if constexpr (AHEAD || BEGUN || (ROTATES && READ_EARLY)) find();
            if constexpr (AHEAD) with.read(0, bias, of_group0, of_group1, corner.n, n);
            if constexpr (AHEAD) of_rows.read(z0, z1, corner.m + part * ROWS, m, corner.product * m, ldc);
            const Angles angles = {z0, z1, positions, turns};
            GroupAngles early_angles = {};
            if (ROTATES && READ_EARLY && corner.n < turns.columns) early_angles.read(angles, corner.m + part * ROWS, m);
            float sums[BLOCKS][TN][4];
            begin(sums, bias, corner.n, n);
            // Before its turn a group would mistake the phase of an earlier round for a full stage.
            if constexpr (PING_PONG) mbarrier_wait(barriers.order + own * 8, round.parity() ^ (own == 0));
            int left = -1;  // the stage that the products under way still read
            const auto leave = [&] {
                if (lane == 0 && left >= 0) {
                    mbarrier_arrive(barriers.of_a.empty(left));
                    mbarrier_arrive(barriers.of_b.empty(left));
                }
            };
            const auto pass = [&] {  // once all stages of the tile are full
                if (lane == 0) mbarrier_arrive(barriers.order + (own + 1) % GROUPS * 8);
            };
#pragma unroll 1
            for (int step = 0; step < steps; ++step) {
                mbarrier_wait(barriers.of_a.full(pipe.stage), pipe.parity);
                mbarrier_wait(barriers.of_b.full(pipe.stage), pipe.parity);
                if (EARLY && step == steps - 1) pass();
                const uint64 from_a = smem_descriptor(tiles_a + pipe.stage * BYTES_A + part * ROWS * BK * 2);
                const u32 tile_b = tiles_b + pipe.stage * BYTES_B;
                const uint64 from_b = ACROSS ? smem_descriptor_across<STRIP_B>(tile_b) : smem_descriptor(tile_b);
                settle(sums);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < BK / 16; ++k)
#pragma unroll
                    for (int i = 0; i < BLOCKS; ++i) {
                        const uint64 of_a = from_a + i * (64 * BK * 2 >> 4) + k * 2;
                        if constexpr (ACROSS)
                            wgmma_across(sums[i], of_a, from_b + k * (16 * 128 >> 4));
                        else
                            wgmma(sums[i], of_a, from_b + k * 2);
                    }
                wgmma_commit();
                wgmma_wait<1>();
                leave();
                left = pipe.stage;
                pipe.next();
            }
            if constexpr (PING_PONG && !EARLY) pass();
            wgmma_wait<0>();
            settle(sums);
            leave();
            if constexpr (PING_PONG) pipe.skip((GROUPS - 1) * steps);

            if constexpr (!AHEAD && !BEGUN && !(ROTATES && READ_EARLY)) find();
            const int m0 = corner.m + part * ROWS, before = corner.product * m;
            R* const to = y + (long long)before * ldc;
            if constexpr (!AHEAD) of_rows.read(z0, z1, m0, m, before, ldc);
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece, ++round.count) {
                StripOperands next = {};
                if (AHEAD && piece + 1 < PIECES) next.read(piece + 1, bias, of_group0, of_group1, corner.n, n);
                mbarrier_wait(barriers.ready + round.barrier(part), round.parity());
                if constexpr (!AHEAD && !STAGED) with.read(piece, bias, of_group0, of_group1, corner.n, n);
                unsigned char* const place = results + round.place() + part * (PLACE / SHARING);
                if constexpr (ROTATES)
                    rotated_strip(sums, piece, angles, early_angles, place, m0, m, corner.n);
                else if constexpr (STAGED)
                    epilogue_rows(sums, place, to, bias, of_group0, of_group1, of_rows, m0, m, corner.n, n, ldc);
                else
                    epilogue_strip(sums, piece, with, of_rows, place, to, m0, m, corner.n, n, ldc);
#ifdef SECOND
                store_second(place, piece, (R*)SECOND + (long long)before * ldc, bias, m0, m, corner.n, n, ldc);
#endif
                fence_proxy_async();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(barriers.done + round.barrier(part));
                if constexpr (AHEAD) with = next;
            }
        }
    }
}
