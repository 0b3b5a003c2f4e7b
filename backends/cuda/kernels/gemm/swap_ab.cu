// c[m][n] = epilogue(sum over k of a[m][k] * w[n][k] + bias[n]): products of few rows of 16-bit floats with constant
// weights, on the tensor cores of Hopper. Weights are 16-bit floats or, if PACKED, integers of a few bits, which are
// (integer - zero) * scale with one scale and zero point per BLOCK of terms.
//
// Weights are the left operand of wgmma, so that few rows of `a` fill the right one. The copy engine brings weights and
// rows of `a` to shared memory, STAGES steps ahead. Consumer warpgroups have 64 rows of weights each; SLICES of them
// have the same rows and alternate between the steps (sliced-K).
//
// Packed weights are in the order of the fragments that they become in registers (`PackedWeights.fragments`): a strip of
// sixteen rows has, of some terms, a word of 16 bytes for each lane of a warp, and for each block of terms the scales of
// upper and lower rows side by side. Two fragments are unpacked while the two before are multiplied.
//
// If NORMALIZED, rows of `a` are normalized as they are multiplied, see normalized_rows.cuh; if DIVIDES, see measured_rows.cuh.
//
// The blocks of a cluster share the sums of a tile (split-K) and add them up in a fixed order.
//
// The kernel starts while the preceding one still runs: it requests weights, which are constants, and then waits.
//
// Types: T, of `a`; Z, of the epilogue's operands; R, of results. Compile-time: BM, rows of `a` of a block; GROUPS, of
// consumers with rows of their own; SLICES; STAGES; EARLY, steps whose weights are requested first; RESIDENT, blocks per multiprocessor; LAUNCHES, whether the next kernel may start before this one stops waiting; WIDTH, bytes of a row of weights
// in a step; REGISTERS and OTHER_REGISTERS per thread of consumers and of others; K terms of a row; PRODUCTS, one, or two
// whose weights take turns, see store_tile.cuh; those of normalized_rows.cuh, rotated_eights.cuh and
// measured_tiles.cuh; MOMENTS, where what is known of rows is in shared memory; SPLIT and the constants of the epilogue, see multistage.cu. If PACKED:
// BITS; BLOCK; ZEROS, whether every scale has a zero point, else it is 2^(BITS - 1). Else `factors` is `w`.

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
constexpr int STEP = WIDTH * 8 / BITS, FACTORS = STEP > BLOCK ? STEP / BLOCK : 1;  // terms of a step; scales of a row
constexpr int FACTOR = (1 + ZEROS) * sizeof(T), SPAN = FACTORS * FACTOR;  // bytes, of a block, and of a row in a step
constexpr int LINE = 16 * SPAN < 128 ? 16 * SPAN : 128;  // of a strip, which the copy engine stores at a time
#else
constexpr int STEP = 64, SPAN = 0;
#endif

constexpr int STEPS = (K + STEP - 1) / STEP;
constexpr int BN = GROUPS * 64, CONSUMERS = GROUPS * SLICES * 128, THREADS = CONSUMERS + 128;
constexpr int PITCH = BN + 4;  // of the sums in shared memory
constexpr int BYTES_TILE = BM * 128, TILES = STEP / 64;  // of 64 terms of `a`; such tiles of a stage
constexpr int BYTES_A = TILES * BYTES_TILE, BYTES_W = BN * WIDTH, BYTES_FACTORS = (BN * SPAN + 1023) / 1024 * 1024;
constexpr int OF_W = STAGES * BYTES_A, OF_FACTORS = OF_W + STAGES * BYTES_W;  // where they begin
constexpr int BYTES_STAGES = OF_FACTORS + STAGES * BYTES_FACTORS, BYTES_SUMS = SLICES * BM * PITCH * 4;
constexpr int BARRIERS = ((BYTES_STAGES > BYTES_SUMS ? BYTES_STAGES : BYTES_SUMS) + 15) / 16 * 16;
// Parities tell adjacent phases apart. Copies may end in another order than they begin, so a slice that shared barriers with
// others could be two phases ahead of one. So each is a single slice's: the steps take turns among that many.
constexpr int PHASED = (STAGES + SLICES - 1) / SLICES * SLICES;
constexpr int INBOX = BARRIERS + PHASED * 16;

#include "gemm/swapped.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"
#include "gemm/normalized_rows.cuh"
#include "gemm/measured_tiles.cuh"

// Operands of the epilogue are read before the products, if registers are left.
constexpr bool EARLY_OPERANDS = FinishProducts<PRODUCTS>::ONCE && !PACKED;

// ── loading ─────────────────────────────────────────────────────────────────────────────────────


// What one thread requests of the copy engine.
struct Requests {
    const TensorMap *a, *w, *factors;
    u32 shared;
    const Block& block;
    Pipeline<PHASED> ring;

    // Constants of a step.
    __device__ __forceinline__ void bring_weights(int number) const
    {
        const int stage = number % STAGES, step = block.first + number;
        const u32 barrier = ring.full(number % PHASED), to = shared + OF_W + stage * BYTES_W;
        mbarrier_expect_tx(barrier, BYTES_A + BYTES_W + BN * SPAN);
#if PACKED
        tma_load_3d(to, w, barrier, 0, step * (WIDTH / 8), block.n0 / 16);
        tma_load_3d(shared + OF_FACTORS + stage * BYTES_FACTORS, factors, barrier, 0,
                    step * STEP / BLOCK * (16 * FACTOR) / LINE, block.n0 / 16);
#else
        tma_load_2d(to, w, barrier, step * STEP, block.n0);
#endif
    }

    __device__ __forceinline__ void bring_rows(int step) const
    {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
            tma_load_2d(shared + step % STAGES * BYTES_A + tile * BYTES_TILE, a, ring.full(step % PHASED),
                        (block.first + step) * STEP + tile * 64, block.m0);
    }

    // Brings the first weights, before the preceding kernel has ended. The engine works in order, so that rows of `a` wait
    // for all weights that are requested before them.
    __device__ __forceinline__ void begin() const
    {
        for (int step = 0; step < min(block.end - block.first, min(STAGES, EARLY)); ++step) bring_weights(step);
    }

    // Brings all other weights, and the rows of `a`.
    __device__ __forceinline__ void bring_all() const
    {
        PipelineState<PHASED> freed;
        for (int step = 0; step < block.end - block.first; ++step) {
            if (step >= STAGES) {
                mbarrier_wait(ring.empty(freed.stage), freed.parity);
                freed.next();
            }
            if (step >= min(STAGES, EARLY)) bring_weights(step);
            bring_rows(step);
        }
    }
};

// ── multiplying ─────────────────────────────────────────────────────────────────────────────────


// Multiplies steps with the rows of weights of a warpgroup, the first of which in the block is `row`.
struct Steps {
    unsigned char* shared;
    Pipeline<PHASED> ring;
    PipelineState<PHASED> pipe;
    int row, stage;

    __device__ __forceinline__ Steps(unsigned char* shared, int slice, int row)
        : shared(shared), ring(shared_address(shared) + BARRIERS), row(row), stage(slice % STAGES)
    {
        pipe.skip(slice);
#if PACKED
        const int strip = row / 16 + threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
        words = strip * (16 * WIDTH) + swizzled(lane / 8, lane % 8);
        scales = exchanged(strip * (16 * SPAN) + lane / 4 * (2 * FACTOR));
#endif
    }

    // The descriptor of sixteen terms of `a` of the current stage. Only its lower half depends on the place.
    __device__ __forceinline__ uint64 sixteen_of(int number) const
    {
        const uint64 first = smem_descriptor(shared_address(shared) + stage * BYTES_A);
        const u32 place = number / 4 * (BYTES_TILE / 16) + number % 4 * 2;
        return first >> 32 << 32 | (u32)first + place;
    }

#if PACKED
    static constexpr int PAIRS = STEP / 32, PAIRS_OF_WORD = EACH / 4;  // of fragments: in a step, in a lane's word
    Masks masks;
    int words, scales;  // where a lane's are in a stage
    u32 fragments[2][2][4];  // of a pair that is multiplied, and of the next

    // Where the copy engine stores what a lane reads, in lines of 128 bytes or of LINE. It exchanges words by bits of their
    // address, so that such bits of a sum without carries may be exchanged one by one.
    static __device__ __forceinline__ constexpr int exchanged(int at) { return at ^ (at >> 3 & (LINE - 16)); }

    // A lane's word.
    __device__ __forceinline__ Word word_of(int number) const
    {
        const unsigned char* const own = shared + OF_W + stage * BYTES_W + number * 512;
        return *(const Word*)(own + (words ^ number % 2 * 64));
    }

    // The scales of a lane's upper and lower row in a block.
    struct Factors {
        Factor of[2];
    };
    __device__ __forceinline__ Factors factors_of(int number) const
    {
        struct alignas(2 * FACTOR) Both {
            u32 at[1 + ZEROS];
        };
        const unsigned char* const own = shared + OF_FACTORS + stage * BYTES_FACTORS;
        const Both both = *(const Both*)(own + (scales ^ exchanged(number * (16 * FACTOR))));
        if constexpr (ZEROS)
            return {Factor(twice(both.at[0], false), twice(both.at[0], true)),
                    Factor(twice(both.at[ZEROS], false), twice(both.at[ZEROS], true))};
        else return {Factor(twice(both.at[0], false), 0), Factor(twice(both.at[0], true), 0)};
    }

    __device__ __forceinline__ void unpack_pair(u32 (&to)[2][4], const Word& word, int number,
                                                const Factors (&factors)[2]) const
    {
#pragma unroll
        for (int i = 0; i < 16; i += EACH) {
            u32 weights[EACH / 2];
            dequantize(weights, word.at[(number * 16 + i) / EACH % 4], masks,
                       [&](int at) { return factors[(i / 2 + at) / 2 % 2].of[at % 2]; });
#pragma unroll
            for (int at = 0; at < EACH / 2; ++at)
                to[(i / 2 + at) / 2 % 2][(i / 2 + at) / 4 * 2 + at % 2] = weights[at];
        }
    }

    __device__ __forceinline__ void multiply(Sums& sums)
    {
        mbarrier_wait(ring.full(pipe.stage), pipe.parity);
        Word word, next = word_of(0);
        Factors factors[2] = {factors_of(0), factors_of(0)};
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            if (pair % PAIRS_OF_WORD == 0) {
                word = next;
                if (pair + PAIRS_OF_WORD < PAIRS) next = word_of(pair / PAIRS_OF_WORD + 1);
            }
            if (BLOCK == 16 || (pair > 0 && pair * 32 % BLOCK == 0)) {
                factors[0] = factors_of(pair * 32 / BLOCK);
                factors[1] = BLOCK == 16 ? factors_of(pair * 2 + 1) : factors[0];
            }
            if (pair > 1) wgmma_wait<1>();  // the products of the fragments that are overwritten now are complete
            unpack_pair(fragments[pair % 2], word, pair % PAIRS_OF_WORD, factors);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < 2; ++i) wgmma(sums, fragments[pair % 2][i], sixteen_of(pair * 2 + i));
            wgmma_commit();
        }
    }
#else
    __device__ __forceinline__ void multiply(Sums& sums)
    {
        mbarrier_wait(ring.full(pipe.stage), pipe.parity);
        const u32 weights = shared_address(shared) + OF_W + stage * BYTES_W + row * 128;
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
        if (threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty(pipe.stage));
        __syncwarp();
        pipe.skip(SLICES);
        stage = (stage + SLICES) % STAGES;
    }
};

__device__ __forceinline__ void multiply(unsigned char* shared, const Block& block)
{
    const int group = __reduce_max_sync(~0u, threadIdx.x / 128), slice = group / GROUPS, row = group % GROUPS * 64;
    Steps steps(shared, slice, row);
    Sums sums = {};
    for (int step = block.first + slice; step < block.end; step += SLICES) steps.add(sums);
    named_barrier_sync<CONSUMERS>(1);  // the stages are read, and sums take their place
    gather((float*)shared, sums, {1, 1}, slice, row + threadIdx.x / 32 % 4 * 16);
    if constexpr (SLICES > 1) {
        named_barrier_sync<CONSUMERS>(1);
        add_slices<SLICES>((float*)shared, threadIdx.x, CONSUMERS);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
swap_ab(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap w,
        const __grid_constant__ TensorMap factors, void* c, const Z* bias, const Z* z0, const Z* z1, int m, int n,
        int tiles_m, float2* moments, const float* columns, const T* rows, const T* scale, const T* shift, T* kept,
        float epsilon, const float* measured, float unit, R* rows_left, const R* factors_left, float* squares_left,
        const T* cosine, const T* sine, const long long* positions, Turns turns, R* others)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(tiles_m);
    const Pipeline<PHASED> ring(shared_address(shared) + BARRIERS);
    const Requests requests{&a, &w, &factors, shared_address(shared), block, ring};
    const bool requesting = threadIdx.x == CONSUMERS;
    const FinishProducts<PRODUCTS> finish{c, bias, z0, z1, m, n / PRODUCTS, n / PRODUCTS, 0, 0};
    typename FinishProducts<PRODUCTS>::Several some;
    if constexpr (LAUNCHES) grid_dependency_launch();
    if (requesting) {
        prefetch_map(&a);
        ring.begin(1, GROUPS * 4);
        requests.begin();
    }
    const Around around(columns, (const float2*)(shared + MOMENTS), moments, block.n0, n,
                        {{cosine, sine, positions, turns}, (R*)c, others, n});
    const Measuring measuring((const float*)(shared + MOMENTS), rows_left, factors_left, squares_left, block.n0, n / PRODUCTS);
    const Inbox<BM, BN / 8> inbox(shared + INBOX, block.split, block.splits);
    if constexpr (SPLIT == CLUSTER) inbox.open();
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if constexpr (OTHER_REGISTERS < REGISTERS) setmaxnreg_dec<OTHER_REGISTERS>();
        grid_dependency_sync();
        if (requesting) requests.bring_all();
        __syncwarp();
        if constexpr (NORMALIZED) {
            const Kept all{rows, scale, shift, kept, block.n0 / BN, (n + BN - 1) / BN};
            RowMoments<CONSUMERS + 32, 96>::find((float2*)(shared + MOMENTS), moments, block.m0, m, epsilon, all);
        }
        if constexpr (DIVIDES)
            find_inverses<CONSUMERS + 32, 96>((float*)(shared + MOMENTS), measured, block.m0, m, epsilon, unit);
        if constexpr (EARLY_OPERANDS) finish.begin(some, inbox, block);
    } else {
        if constexpr (OTHER_REGISTERS < REGISTERS) setmaxnreg_inc<REGISTERS>();
        grid_dependency_sync();
        if constexpr (EARLY_OPERANDS) finish.begin(some, inbox, block);
        multiply(shared, block);
    }
    if constexpr (LEAVES || DIVIDES) finish.template store<!EARLY_OPERANDS>(some, shared, inbox, block, measuring);
    else finish.template store<!EARLY_OPERANDS>(some, shared, inbox, block, around);
}
