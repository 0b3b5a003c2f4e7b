// c[m][n] = epilogue(sum over k of a[m][k] * w[n][k] + bias[n]): products of few rows of 16-bit floats with constant
// weights, on the tensor cores of Hopper. Weights are 16-bit floats or, if PACKED, integers of a few bits, which are
// (integer - zero) * scale with one scale and zero point per BLOCK of terms.
//
// Weights are the left operand of wgmma, so that few rows of `a` fill the right one. The copy engine brings weights and
// rows of `a` to shared memory, STAGES steps ahead. Consumer warpgroups have 64 rows of weights each; SLICES of them
// have the same rows and alternate between the steps (sliced-K).
//
// Packed weights are unpacked in registers, by quarters of a step, one while the previous one is multiplied. They lie
// in the layout of gemv.cu: of every 64 bytes of a row, four lanes have a word of 16 bytes each. The last
// four warps permute the terms of `a` in shared memory in the same way: of each QUARTER of terms, chunk i of 16 bytes
// has pair i of the four lanes. Barriers of each stage say that it has arrived, is permuted, and is empty again.
//
// The blocks of a cluster share the sums of a tile (split-K) and add them up in a fixed order.
//
// The kernel starts while the preceding one still runs: it requests weights, which are constants, and then waits.
//
// Types: T, of `a`; Z, of the epilogue's operands; R, of results. Compile-time: BM, rows of `a` of a block; GROUPS, of
// consumers with rows of their own; SLICES; STAGES; WIDTH, bytes of a row of weights in a step; REGISTERS and
// OTHER_REGISTERS per thread of consumers and of others; K terms of a row; PRODUCTS, one, or two whose weights take
// turns, see store_tile.cuh; SPLIT and the constants of the epilogue, see multistage.cu. If PACKED: BATCH, the number of
// pieces of `a` that a thread permutes at once; BITS; BLOCK; ZEROS, whether every scale has a zero point, else it is
// 2^(BITS - 1).

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"

#if PACKED
#include "gemm/dequantize.cuh"
constexpr int WORDS = WIDTH / 64, STEP = WORDS * 16 * EACH;  // words of a lane of a row of weights; terms of a step
constexpr int FACTORS = STEP > BLOCK ? STEP / BLOCK : 1, FACTOR = (1 + ZEROS) * sizeof(T);  // of a row in a step
constexpr int SPAN = FACTORS * FACTOR;
#else
constexpr int STEP = 64, SPAN = 0;
#endif

constexpr int STEPS = (K + STEP - 1) / STEP;
constexpr int BN = GROUPS * 64, CONSUMERS = GROUPS * SLICES * 128, THREADS = CONSUMERS + 128;
constexpr int PITCH = BN + 4;  // of the sums in shared memory
constexpr int BYTES_TILE = BM * 128, TILES = STEP / 64;  // of 64 terms of `a`; such tiles of a stage
constexpr int BYTES_A = TILES * BYTES_TILE, BYTES_W = BN * WIDTH, BYTES_FACTORS = BN * SPAN;
constexpr int OF_W = STAGES * BYTES_A, OF_FACTORS = OF_W + STAGES * BYTES_W;  // where they begin
constexpr int BYTES_STAGES = OF_FACTORS + STAGES * BYTES_FACTORS, BYTES_SUMS = SLICES * BM * PITCH * 4;
constexpr int BARRIERS = ((BYTES_STAGES > BYTES_SUMS ? BYTES_STAGES : BYTES_SUMS) + 15) / 16 * 16;
enum { WHOLE, PARTIAL, CLUSTER };

struct Block {  // the tile of a block, and which of the blocks that share it this one is
    int m0, n0, split, splits, first, end;
    static constexpr int batch = 0;

    // Tiles of the same weights are adjacent.
    __device__ __forceinline__ Block(int tiles_m) : split(blockIdx.y), splits(gridDim.y)
    {
        const int tile_n = blockIdx.x / tiles_m;
        n0 = tile_n * BN, m0 = (blockIdx.x - tile_n * tiles_m) * BM;
        first = STEPS * split / splits, end = STEPS * (split + 1) / splits;  // its steps
    }
};

#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"

// ── loading ─────────────────────────────────────────────────────────────────────────────────────

// The barriers of all stages: whether copies have arrived; whether they are permuted, and multiplied.
struct Barriers {
    u32 arrived;
    Pipeline<STAGES> permuted;

    __device__ __forceinline__ explicit Barriers(u32 start) : arrived(start), permuted(start + STAGES * 8) {}

    __device__ __forceinline__ void begin() const
    {
        for (int stage = 0; stage < STAGES; ++stage) mbarrier_init(arrived + stage * 8, 1);
        permuted.begin(4, GROUPS * 4);
    }
};

// What one thread requests of the copy engine.
struct Requests {
    const TensorMap *a, *w;
    const unsigned char* factors;
    u32 shared;
    int n;
    const Block& block;
    Barriers barriers;

    // Constants of a step.
    __device__ __forceinline__ void bring_weights(int step) const
    {
        const int stage = step % STAGES, groups = min(GROUPS, (n - block.n0 + 63) / 64);
        const u32 barrier = barriers.arrived + stage * 8;
        mbarrier_expect_tx(barrier, BYTES_A + BYTES_W + groups * 64 * SPAN);
        tma_load_2d(shared + OF_W + stage * BYTES_W, w, barrier, (block.first + step) * (PACKED ? WIDTH : STEP),
                    block.n0);
        if (SPAN == 0) return;
        for (int group = 0; group < groups; ++group) {
            const long long from = ((long long)(block.n0 / 64 + group) * STEPS + block.first + step) * (64 * SPAN);
            bulk_copy(shared + OF_FACTORS + stage * BYTES_FACTORS + group * 64 * SPAN, factors + from, 64 * SPAN,
                      barrier);
        }
    }

    __device__ __forceinline__ void bring_rows(int step) const
    {
        const int stage = step % STAGES;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            tma_load_2d(shared + stage * BYTES_A + tile * BYTES_TILE, a, barriers.arrived + stage * 8,
                        (block.first + step) * STEP + tile * 64, block.m0);
    }

    // Brings the first steps, as many as there are stages; returns how many.
    __device__ __forceinline__ int begin(bool requests) const
    {
        const int early = min(block.end - block.first, STAGES);
        if (requests)
            for (int step = 0; step < early; ++step) bring_weights(step);
        grid_dependency_sync();
        if (requests)
            for (int step = 0; step < early; ++step) bring_rows(step);
        __syncwarp();
        return early;
    }

    // Brings a step once its stage is empty.
    __device__ __forceinline__ void bring(int step, PipelineState<STAGES>& freed) const
    {
        mbarrier_wait(barriers.permuted.empty(freed.stage), freed.parity);
        bring_weights(step);
        bring_rows(step);
        freed.next();
    }
};

#if PACKED

constexpr int QUARTER = 4 * EACH;     // terms of four lanes
constexpr int LAG = STAGES / 2;       // steps between the release of a stage and the request of its next contents

// The terms of `a` that match a word of weights.
struct Piece {
    u32 at[EACH / 2];
};
struct alignas(EACH < 8 ? 8 : 16) Part {
    u32 at[EACH < 8 ? 2 : 4];
};

// Permutes the terms of a stage. At a time a warp has those of 64 terms of some rows, PIECES times.
struct Permutation {
    static constexpr int ROWS = EACH / 2, GROUPS_OF_ROWS = BM / ROWS, PIECES = GROUPS_OF_ROWS * TILES / 4;
    int warp, row, from, to;

    __device__ __forceinline__ explicit Permutation(int thread)
    {
        const int lane = thread % 32, chunk = lane / 4 % (16 / EACH) * (EACH / 2), byte = lane % 4 * (2 * EACH);
        warp = thread / 32, row = lane / (64 / EACH);
        // All rows of a thread are the same modulo eight, so that chunk i after the first lies at place ^ (i << 4).
        const int place = swizzled((warp * ROWS + row) % 8, chunk) % 128;
        from = (place ^ (byte / 16 << 4)) + byte % 16;
        to = place + lane % 4 * 4;
    }

    __device__ __forceinline__ unsigned char* place_of(unsigned char* stage, int piece) const
    {
        const int number = piece * 4 + warp;
        return stage + number / GROUPS_OF_ROWS * BYTES_TILE + (number % GROUPS_OF_ROWS * ROWS + row) * 128;
    }

    __device__ __forceinline__ void apply(unsigned char* stage) const
    {
#pragma unroll 1
        for (int first = 0; first < PIECES; first += BATCH) {
            Piece pieces[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const unsigned char* const own = place_of(stage, first + i);
#pragma unroll
                for (int q = 0; q < EACH / 2; q += sizeof(Part) / 4) {
                    const Part found = *(const Part*)(own + (from ^ (q / 4 << 4)));
#pragma unroll
                    for (int e = 0; e < sizeof(Part) / 4; ++e) pieces[i].at[q + e] = found.at[e];
                }
            }
            __syncwarp();  // four lanes exchange their chunks
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                unsigned char* const own = place_of(stage, first + i);
                const u32(&words)[EACH / 2] = pieces[i].at;
#pragma unroll
                for (int pair = 0; pair < EACH / 2; ++pair)
                    *(u32*)(own + (to ^ (pair << 4))) = words[pair];
            }
        }
    }
};

// The part of the last four warps.
__device__ __forceinline__ void load(unsigned char* shared, const Requests& requests)
{
    const int thread = threadIdx.x - CONSUMERS, count = requests.block.end - requests.block.first;
    const Barriers& barriers = requests.barriers;
    requests.begin(thread == 0);
    const Permutation permutation(thread);
    PipelineState<STAGES> turn, freed;
    for (int step = 0; step < count; ++step) {
        const int next = step - LAG + STAGES;  // whose stage is free once the consumers have left step - LAG
        if (step >= LAG && next < count && thread == 0) requests.bring(next, freed);
        __syncwarp();
        mbarrier_wait(barriers.arrived + turn.stage * 8, turn.parity);
        permutation.apply(shared + turn.stage * BYTES_A);
        fence_proxy_async();
        __syncwarp();
        if (thread % 32 == 0) mbarrier_arrive(barriers.permuted.full(turn.stage));
        turn.next();
    }
}

#else

__device__ __forceinline__ void load(unsigned char*, const Requests& requests)
{
    const bool requesting = threadIdx.x == CONSUMERS;
    const int early = requests.begin(requesting), count = requests.block.end - requests.block.first;
    PipelineState<STAGES> freed;
    if (requesting)
        for (int step = early; step < count; ++step) requests.bring(step, freed);
    __syncwarp();
}

#endif

// ── multiplying ─────────────────────────────────────────────────────────────────────────────────

typedef float Sums[BM / 8][4];

// Multiplies steps with the rows of weights of a warpgroup, the first of which in the block is `row`.
struct Steps {
    unsigned char* shared;
    Barriers barriers;
    PipelineState<STAGES> turn;
    int row;

    __device__ __forceinline__ Steps(unsigned char* shared, int row)
        : shared(shared), barriers(shared_address(shared) + BARRIERS), row(row)
    {
    }

    // The descriptor of sixteen terms of `a` of the current stage.
    __device__ __forceinline__ uint64 sixteen_of(int number) const
    {
        const u32 stage = shared_address(shared) + turn.stage * BYTES_A;
        return smem_descriptor(stage + number / 4 * BYTES_TILE) + number % 4 * 2;
    }

#if PACKED
    Masks masks;
    u32 fragments[2][EACH / 4][4];  // of a quarter that is multiplied, and of the next

    // A lane's row of weights in the block, one of the upper or lower eight of its warp.
    __device__ __forceinline__ int row_of(int half) const
    {
        return row + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + half * 8;
    }

    // A lane's word of a row, in the order in which the copy engine stores rows of so many bytes.
    __device__ __forceinline__ Word word_of(int half, int number) const
    {
        const int own = row_of(half), chunk = (number * 4 + threadIdx.x % 4) ^ (WIDTH == 64 ? own / 2 & 3 : own & 7);
        return *(const Word*)(shared + OF_W + turn.stage * BYTES_W + own * WIDTH + (chunk << 4));
    }

    // The scale of a quarter of a step.
    __device__ __forceinline__ Factor factor(int j, int half) const
    {
        const int k = j * QUARTER + threadIdx.x % 4 * EACH, number = STEP > BLOCK ? k / BLOCK : 0;
        return Factor(shared + OF_FACTORS + turn.stage * BYTES_FACTORS + row_of(half) * SPAN + number * FACTOR);
    }

    __device__ __forceinline__ void unpack_quarter(u32 (&to)[EACH / 4][4], const Word (&w)[2], int j) const
    {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 weights[EACH / 2];
            dequantize(weights, w[half].at[j % 4], factor(j, half), masks);
#pragma unroll
            for (int i = 0; i < EACH / 2; ++i) to[i / 2][i % 2 * 2 + half] = weights[i];
        }
    }

    __device__ __forceinline__ void multiply(Sums& sums)
    {
        mbarrier_wait(barriers.permuted.full(turn.stage), turn.parity);
#pragma unroll
        for (int number = 0; number < WORDS; ++number) {
            const Word w[2] = {word_of(0, number), word_of(1, number)};
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const int j = number * 4 + q;
                if (j > 1) wgmma_wait<1>();  // the products of the fragments that are overwritten now are complete
                unpack_quarter(fragments[j % 2], w, j);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < EACH / 4; ++i) wgmma(sums, fragments[j % 2][i], sixteen_of(j * (EACH / 4) + i));
                wgmma_commit();
            }
        }
    }
#else
    __device__ __forceinline__ void multiply(Sums& sums)
    {
        mbarrier_wait(barriers.arrived + turn.stage * 8, turn.parity);
        const u32 weights = shared_address(shared) + OF_W + turn.stage * BYTES_W + row * 128;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma(sums, smem_descriptor(weights) + i * 2, sixteen_of(i));
        wgmma_commit();
    }
#endif

    // Adds the products of a step, and releases its stage.
    __device__ __forceinline__ void add(Sums& sums)
    {
        multiply(sums);
        wgmma_wait<0>();  // no products run across branches, else the assembler has each wait for the one before
        settle(sums);
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.permuted.empty(turn.stage));
        __syncwarp();
        turn.skip(SLICES);
    }
};

// Stores the sums of a warp in shared memory as rows of results; `n` is its first column.
__device__ __forceinline__ void gather(float* parts, const Sums& sums, int slice, int n)
{
    const int lane = threadIdx.x % 32;
    float* const own = parts + slice * (BM * PITCH) + lane % 4 * 2 * PITCH + n + lane / 4;
#pragma unroll
    for (int j = 0; j < BM / 8; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) own[(j * 8 + q % 2) * PITCH + q / 2 * 8] = sums[j][q];
}

__device__ __forceinline__ void multiply(unsigned char* shared, const Block& block)
{
    const int slice = threadIdx.x / (GROUPS * 128), row = threadIdx.x / 128 % GROUPS * 64;
    grid_dependency_sync();
    Steps steps(shared, row);
    steps.turn.skip(slice);
    Sums sums = {};
    for (int step = block.first + slice; step < block.end; step += SLICES) steps.add(sums);
    named_barrier_sync<CONSUMERS>(1);  // the stages are read, and sums take their place
    gather((float*)shared, sums, slice, row + threadIdx.x / 32 % 4 * 16);
    if constexpr (SLICES > 1) {
        named_barrier_sync<CONSUMERS>(1);
        add_slices<SLICES>((float*)shared, threadIdx.x, CONSUMERS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
swap_ab(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap w, const unsigned char* factors, void* c,
        const Z* bias, const Z* z0, const Z* z1, int m, int n, int tiles_m)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(tiles_m);
    const Barriers barriers(shared_address(shared) + BARRIERS);
    grid_dependency_launch();
    if (threadIdx.x == 0) barriers.begin();
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if constexpr (OTHER_REGISTERS < REGISTERS) setmaxnreg_dec<OTHER_REGISTERS>();
        load(shared, {&a, &w, factors, shared_address(shared), n, block, barriers});
    } else {
        if constexpr (OTHER_REGISTERS < REGISTERS) setmaxnreg_inc<REGISTERS>();
        multiply(shared, block);
    }
    FinishProducts<PRODUCTS>{c, bias, z0, z1, m, n / PRODUCTS, n / PRODUCTS, 0, 0}.store(shared, block);
}
