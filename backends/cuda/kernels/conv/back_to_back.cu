// Two products behind each other with constant weights, on the tensor cores of Hopper:
//
//     hidden[m][n1] = first::epilogue(sum over k of a[m][k] * w[n1][k] + first_bias[n1])
//     c[m][n]       = epilogue(sum over n1 of hidden[m][n1] * next[n][n1] + bias[n])
//
// So a residual unit ends and the next one begins: 1x1 convolutions that expand and reduce channels. A block has BM rows, and
// OWN columns of `hidden`, which it keeps in shared memory as the terms of the second product; with STORED they are stored as
// well. The blocks of a cluster share the columns, and add up their sums of the second product (inbox.cuh).
//
// Weights are the left operand of wgmma, as in swap_ab.cu. A warpgroup has 64 columns of `hidden`, and then some of the result;
// if there are fewer of these than warpgroups, SLICES of them share the terms. Weights of the first product are requested before
// the kernel waits for the preceding one, those of the second product behind the rows. Of these, EARLY steps have room of their
// own; others take the place of weights of the first product, once these are read.
//
// back_to_back_16_bits.cuh and back_to_back_f16x3.cuh have the arithmetic, and say where operands are.
//
// Types: T, of `a`; Z, of the epilogues' operands; R, of results. Compile-time: BM; GROUPS, warpgroups that multiply; K terms
// of the first product; N, columns of the second one; EARLY; STORED; FIRST_BIAS, FIRST_Z0 and FIRST_Z1, as the constants of
// epilogue.cuh; SPLIT and these, of the second epilogue; in float32, the macros of store_halves.cuh.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/wgmma.cuh"
#include "ptx/cluster.cuh"
#include "ptx/pipeline.cuh"
#include "ptx/tma.cuh"

constexpr int STEP = 64, STEPS = (K + STEP - 1) / STEP;  // terms of a step
constexpr int HALVES = F16X3 ? 2 : 1;                    // tiles of rows of 128 bytes of a step
constexpr int OWN = GROUPS * 64, TILES = (N + 63) / 64, BN = TILES * 64;
constexpr int SLICES = TILES < GROUPS ? GROUPS / TILES : 1;
constexpr int PER = (TILES + GROUPS - 1) / GROUPS;  // tiles of a warpgroup
constexpr int CONSUMERS = GROUPS * 128, THREADS = CONSUMERS + 32;
constexpr int PITCH = (OWN > BN ? OWN : BN) + 4;  // of sums in shared memory
constexpr int TILE_A = BM * 128, TILE_W = OWN * 128, TILE_NEXT = BN * 128;
constexpr int BYTES_A = HALVES * TILE_A, BYTES_W = HALVES * TILE_W, BYTES_NEXT = HALVES * TILE_NEXT;  // of a step
constexpr int OF_W = STEPS * BYTES_A, BYTES_FIRST = OF_W + STEPS * BYTES_W;
constexpr int BYTES_SUMS = (SLICES * BM * PITCH * 4 + 1023) / 1024 * 1024, BYTES_LATE = (GROUPS - EARLY) * BYTES_NEXT;
constexpr int OF_HIDDEN = BYTES_FIRST > BYTES_SUMS + BYTES_LATE ? BYTES_FIRST : BYTES_SUMS + BYTES_LATE;
constexpr int OF_LATE = OF_HIDDEN - BYTES_LATE, OF_NEXT = OF_HIDDEN + GROUPS * BYTES_A;
constexpr int SCALES = OF_NEXT + EARLY * BYTES_NEXT;  // of rows in halves
constexpr int BARRIERS = SCALES + (F16X3 ? (STEPS + GROUPS) * BM * 4 : 0), INBOX = BARRIERS + (STEPS + 3) / 2 * 16;
static_assert(SLICES == 1 || SLICES * TILES == GROUPS, "");

// Where weights of a step of the second product are, and which barrier says that they are there.
__device__ constexpr int next_at(int step)
{
    return step < EARLY ? OF_NEXT + step * BYTES_NEXT : OF_LATE + (step - EARLY) * BYTES_NEXT;
}
__device__ constexpr int next_full(int step) { return STEPS + (step >= EARLY); }

#include "gemm/swapped.cuh"
#include "gemm/epilogue.cuh"
#include "gemm/store_tile.cuh"
#if F16X3
#include "conv/back_to_back_f16x3.cuh"
#else
#include "conv/back_to_back_16_bits.cuh"
#endif

#if !(F16X3 && IN_HALVES)
// The results of a block, as they are.
struct Stored {
    Finish::Several some;

    // Reads the operands of the epilogue, if registers are left.
    __device__ __forceinline__ Stored(const Finish& finish, const Inbox<BM, BN / 8>& inbox, const Block& block)
    {
        if constexpr (Finish::ONCE) finish.begin(some, inbox, block);
    }

    __device__ __forceinline__ void store(const Finish& finish, unsigned char* shared, const Inbox<BM, BN / 8>& inbox,
                                          const Block& block, unsigned char*)
    {
        finish.store<!Finish::ONCE>(some, shared, inbox, block);
    }
};
#endif

// The results of the first product, eight adjacent ones at a time.
struct Hidden {
    static constexpr int WORDS = OWN / 8, ALL = BM * WORDS, MOST = (ALL + THREADS - 1) / THREADS;
    long long at[MOST];  // where they are stored; -1 if there are none
    Operands<8> of[MOST];

    // Reads the operands of this thread's.
    __device__ __forceinline__ void begin(const Z* bias, const Z* z0, const Z* z1, int row0, int column0, int m, int n, int ldh)
    {
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int item = threadIdx.x + i * THREADS, row = row0 + item / WORDS, column = column0 + item % WORDS * 8;
            at[i] = -1;
            if (item >= ALL || row >= m || column >= n) continue;
            at[i] = (long long)row * ldh + column;
            of[i] = {operand<8, FIRST_BIAS ? 2 : 0>(bias, at[i], row, column, 8),
                     operand<8, FIRST_Z0>(z0, FIRST_Z0 >= 4 ? first::place0(at[i]) : at[i], row, column, 8),
                     operand<8, FIRST_Z1>(z1, FIRST_Z1 >= 4 ? first::place1(at[i]) : at[i], row, column, 8)};
        }
    }

    // Computes them from their sums, and stores them as terms of the second product, and in `hidden`.
    __device__ __forceinline__ void store(unsigned char* shared, R* hidden) const
    {
#pragma unroll
        for (int i = 0; i < MOST; ++i) {
            const int item = threadIdx.x + i * THREADS, row = item / WORDS, word = item % WORDS;
            Neighbours<R, 8> results = {};
            if (at[i] >= 0) {
                float values[8];
                Finish::read_sums(values, (const float*)shared + row * PITCH + word * 8);
#pragma unroll
                for (int q = 0; q < 8; ++q) {
                    const float sum = FIRST_BIAS ? values[q] + float(of[i].shift.at[q]) : values[q];
                    results.at[q] = first::epilogue(sum, q, q, q, of[i].first.at, of[i].second.at);
                }
                if constexpr (STORED) keep(hidden + at[i], results, 8);
            }
            put(shared, OF_HIDDEN, STEPS, row, word, results, item < ALL);
        }
    }
};

// The first column of a warp in a tile.
__device__ __forceinline__ int column_of(int tile) { return tile * 64 + threadIdx.x / 32 % 4 * 16; }

// Multiplies rows by the weights of a warpgroup, and stores the sums of 64 columns of `hidden`.
__device__ __forceinline__ void multiply_first(unsigned char* shared, const Requests& requests, int group)
{
    const u32 base = requests.shared, weights = base + OF_W + group * 8192;
    float scales[2];
    find_scales(scales, requests.scales, requests.column + column_of(group), requests.rows_w);
    Products<TILE_W> products;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        mbarrier_wait(requests.full(step), 0);
        products.add(shared, weights + step * BYTES_W, base + step * BYTES_A, step);
    }
    products.end();
    named_barrier_sync<THREADS>(1);  // rows and weights are read, and sums and other weights take their place
    gather((float*)shared, products.sums, scales, 0, column_of(group));
}

// Multiplies `hidden` likewise, and stores the sums of the block.
__device__ __forceinline__ void multiply_second(unsigned char* shared, const Requests& requests, int group)
{
    Products<TILE_NEXT> products[PER];
    const int slice = SLICES > 1 ? group / TILES : 0, first = SLICES > 1 ? group % TILES : group;
    const u32 base = requests.shared;
    float scales[PER][2];
#pragma unroll
    for (int i = 0; i < PER; ++i)
        find_scales(scales[i], requests.next_scales, column_of(first + i * GROUPS), requests.rows_next);
#pragma unroll
    for (int number = 0; number < GROUPS / SLICES; ++number) {
        const int step = number * SLICES + slice;
        mbarrier_wait(requests.full(next_full(step)), 0);
#pragma unroll
        for (int i = 0; i < PER; ++i) {
            const u32 weights = base + next_at(step) + min(first + i * GROUPS, TILES - 1) * 8192;
            products[i].add(shared, weights, base + OF_HIDDEN + step * BYTES_A, STEPS + step);
        }
    }
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        products[i].end();
        const int tile = first + i * GROUPS;
        if (tile < TILES) gather((float*)shared, products[i].sums, scales[i], slice, column_of(tile));
    }
    if constexpr (SLICES > 1) {
        named_barrier_sync<CONSUMERS>(1);
        add_slices<SLICES>((float*)shared, threadIdx.x, CONSUMERS);
    }
}

// What is stored where.
struct Results {
    R* hidden;
    const Z *first_bias, *first_z0, *first_z1;
    R* c;
    unsigned char* halves;
    const Z *bias, *z0, *z1;
    int m, n1, ldh, n, ldc;
};

__device__ __forceinline__ void compute(const Requests& requests, unsigned char* shared, const Block& block, const Results& to)
{
    const int column = block.split * OWN, group = __reduce_max_sync(~0u, threadIdx.x / 128);
    if (threadIdx.x == CONSUMERS) {
        for (int step = 0; step < STEPS + 2; ++step) mbarrier_init(requests.full(step), 1);
        mbarrier_init_fence();
        requests.begin();
    }
    const Inbox<BM, BN / 8> inbox(shared + INBOX, block.split, block.splits);
    if constexpr (SPLIT == CLUSTER) inbox.open();
    __syncthreads();
    grid_dependency_sync();
    if (threadIdx.x == CONSUMERS) requests.end();
    __syncwarp();
    bring_rows(shared, requests, to.m);
    Hidden found;
    found.begin(to.first_bias, to.first_z0, to.first_z1, block.m0, column, to.m, to.n1, to.ldh);
    const Finish finish{to.c, to.bias, to.z0, to.z1, to.m, to.n, to.ldc, 0, 0};
    Stored stored(finish, inbox, block);
    if constexpr (F16X3) {
        fence_proxy_async();
        __syncthreads();
    }
    if (threadIdx.x < CONSUMERS) {
        multiply_first(shared, requests, group);
    } else {
        named_barrier_sync<THREADS>(1);
        if (threadIdx.x == CONSUMERS) requests.bring_next(EARLY, GROUPS);
        __syncwarp();
    }
    __syncthreads();
    found.store(shared, to.hidden);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x < CONSUMERS) multiply_second(shared, requests, group);
    stored.store(finish, shared, inbox, block, to.halves);
}

#if F16X3
extern "C" __global__ void __launch_bounds__(THREADS, 1)
back_to_back_f16x3(const T* a, const T* w, const T* next, const float* scales, const float* next_scales, R* hidden,
                   const Z* first_bias, const Z* first_z0, const Z* first_z1, R* c, unsigned char* halves, const Z* bias,
                   const Z* z0, const Z* z1, int m, int lda, int n1, int rows_w, int ldh, int n, int rows_next, int ldc)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(gridDim.x);
    const Requests requests{a, w, next, scales, next_scales, lda, rows_w, rows_next, shared_address(shared), block.m0,
                            block.split * OWN};
    compute(requests, shared, block, {hidden, first_bias, first_z0, first_z1, c, halves, bias, z0, z1, m, n1, ldh, n, ldc});
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 1)
back_to_back(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap w, const __grid_constant__ TensorMap next,
             R* hidden, const Z* first_bias, const Z* first_z0, const Z* first_z1, R* c, const Z* bias, const Z* z0,
             const Z* z1, int m, int n1, int ldh, int n, int ldc)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const Block block(gridDim.x);
    const Requests requests{&a, &w, &next, shared_address(shared), block.m0, block.split * OWN};
    compute(requests, shared, block, {hidden, first_bias, first_z0, first_z1, c, nullptr, bias, z0, z1, m, n1, ldh, n, ldc});
}
#endif
