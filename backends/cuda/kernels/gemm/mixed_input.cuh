// The main loop of products of 16-bit floats with weights of a few bits, which are (integer - zero) * scale with one scale
// and zero point per BLOCK of terms; for enough rows to amortize the unpacking.
//
// Weights are the left operand of mma.sync, so that few rows fill it, in the layout of gemv.cu: a lane has a word of 16
// bytes of row lane / 4 of every eight, four lanes the 64 bytes of a row that are a step, and word j of these four has
// adjacent terms. A lane reads the terms of `a` that match its weights, so that terms are permuted equally on both sides.
//
// A block has BN rows of weights, which WARPS_N warps divide, and BM rows of `a`. SLICES of these warps alternate between
// the steps (sliced-K), and each slice has STAGES of its own: only its warps wait for each other. A lane copies its own
// weights by cp.async, STAGES - 1 ahead, and its share of the rows of `a`, in the order in which lanes read them. Scales
// are copied once, those of all steps. They multiply weights, or if blocks are long the sums of a block.
//
// Types: T, of `a`. Compile-time: BM BN WARPS_N SLICES STAGES; FACTORS_BYTES, room for the scales of a row in shared
// memory; BITS; BLOCK; ZEROS, whether every scale has a zero point, else it is 2^(BITS - 1); K terms of a row; BYTES and
// BLOCKS of a row in memory; VECTOR, the elements of `a` per copy.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/load.cuh"
#include "ptx/cluster.cuh"
#include "gemm/dequantize.cuh"

constexpr int EIGHTS = BN / WARPS_N / 8, PAIRS = EIGHTS / 2, GROUPS = BM / 8;  // of a warp; of rows of `a`
constexpr int THREADS = 32 * WARPS_N * SLICES;
constexpr int QUARTER = 4 * EACH, STEP = 4 * QUARTER, STEPS = (K + STEP - 1) / STEP;  // terms of four lanes, a step
constexpr int PIECE = EACH * sizeof(T), BYTES_A = 4 * GROUPS * 32 * PIECE;  // a lane's terms; those of a step
constexpr int BYTES_W = EIGHTS * 512, BYTES_STAGE = BYTES_A + WARPS_N * BYTES_W;
constexpr int PITCH = BN + 4;  // of the sums in shared memory

// Has the compiler keep a value in registers instead of computing it again in every step.
__device__ __forceinline__ void hold(u32& value) { asm volatile("mov.b32 %0, %0;" : "+r"(value)); }
template <typename V> __device__ __forceinline__ void hold(const V*& value)
{
    asm volatile("mov.b64 %0, %0;" : "+l"(value));
}

// The scales of a row in a step, and in memory, where they are copied in pieces from a whole one on.
constexpr int FACTOR = (1 + ZEROS) * sizeof(T), SPAN = STEP > BLOCK ? STEP / BLOCK * FACTOR : FACTOR;
constexpr int ROW_FACTORS = BLOCKS * FACTOR, COPY = ROW_FACTORS % 16 == 0 ? 16 : ROW_FACTORS % 8 == 0 ? 8 : 4;

// Where the scales of a step are in their row, and the piece that they begin in.
__device__ __forceinline__ int factors_at(int step) { return step * STEP / BLOCK * FACTOR; }
__device__ __forceinline__ int piece_at(int step) { return factors_at(step) / COPY * COPY; }

// ── rows of `a` ─────────────────────────────────────────────────────────────────────────────────

// Where the first lane, and each, has term e of its terms number `number` of a step: chunks of all lanes are side by
// side.
constexpr int CHUNK = PIECE < 16 ? PIECE : 16;
struct alignas(CHUNK) Chunk {
    u32 at[CHUNK / 4];
};
__device__ constexpr int place_of(int number, int e)
{
    const int byte = e * (int)sizeof(T);
    return number * (32 * PIECE) + byte / CHUNK * (32 * CHUNK) + byte % CHUNK;
}
__device__ __forceinline__ int place(int number, int e) { return place_of(number, e) + threadIdx.x % 32 * CHUNK; }

// A lane's share of the rows of `a`: its terms of a row of each group.
struct Terms {
    static constexpr int OWN = WARPS_N < 4 ? 4 / WARPS_N : 1;  // quarters of a step, WARPS_N apart
    static constexpr int APART = WARPS_N <= 4 ? 1 : WARPS_N / 4, COUNT = GROUPS / APART;  // groups
    static_assert(GROUPS % APART == 0 && (4 % WARPS_N == 0 || WARPS_N % 4 == 0), "warps share rows equally");
    const T* first[COUNT];
    u32 to;  // where a lane stores its terms of the first group, in a stage

    // `row_of(m)` is the row of `a` that is row m of the tile.
    template <typename RowOf> __device__ __forceinline__ Terms(const T* a, const RowOf& row_of)
    {
        const int lane = threadIdx.x % 32, warp_n = threadIdx.x / 32 % WARPS_N;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int row = row_of((i * APART + warp_n / 4) * 8 + lane / 4);
            first[i] = a + (long long)row * K + warp_n % 4 * QUARTER + lane % 4 * EACH;
            hold(first[i]);
        }
        to = place(warp_n, 0);
        hold(to);
    }

    // Copies the terms of a step for all lanes, this warp's share of them, and zeros past the last term.
    __device__ __forceinline__ void copy(u32 stage, int step) const
    {
        constexpr int EACH_COPY = VECTOR < EACH ? VECTOR : EACH;
        const int k = step * STEP + threadIdx.x / 32 % WARPS_N % 4 * QUARTER + threadIdx.x % 4 * EACH;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int j = 0; j < OWN; ++j)
#pragma unroll
                for (int e = 0; e < EACH; e += EACH_COPY) {
                    const int at = j * WARPS_N * QUARTER + e;
                    const bool inside = K % STEP == 0 || k + at < K;
                    const T* const from = first[i] + (inside ? step * STEP + at : 0);
                    const u32 own = stage + to + place_of(i * APART * 4 + j * WARPS_N, e);
                    if constexpr (VECTOR > 1) cp_async<EACH_COPY>(own, from, inside);
                    else keep_single(own, inside ? *(const unsigned short*)from : 0);
                }
    }
};

// The terms of a group of rows that match word j of the weights of a lane, in the same order.
__device__ __forceinline__ void load_values(u32 (&to)[EACH / 2], const unsigned char* from, int group, int j)
{
#pragma unroll
    for (int i = 0; i < EACH / 2; i += CHUNK / 4) {
        const Chunk found = *(const Chunk*)(from + place(group * 4 + j, 2 * i));
#pragma unroll
        for (int q = 0; q < CHUNK / 4; ++q) to[i + q] = found.at[q];
    }
}

// ── sums ────────────────────────────────────────────────────────────────────────────────────────

typedef float Sums[PAIRS][GROUPS][4];

// Quarters of a step with one scale per row; if they are cheaper to scale, sums are scaled instead of weights.
constexpr int SHARED = BLOCK >= STEP ? 4 : BLOCK / QUARTER, SCALED = SHARED > 0 ? SHARED : 1;
constexpr bool LATE = GROUPS < 4 * SHARED && 8 * PAIRS * GROUPS + 4 * EIGHTS <= 160;  // registers

// Adds the products of a step.
__device__ __forceinline__ void multiply(Sums& sums, const unsigned char* rows, const unsigned char* words,
                                         const unsigned char* factors, const Masks& masks)
{
    const int lane = threadIdx.x % 32;
    Word w[EIGHTS];
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) w[e] = *(const Word*)(words + e * 512 + lane * 16);
#pragma unroll
    for (int first = 0; first < 4; first += SCALED) {
        Sums part = {};
        const auto factor_at = [&](int e, int j) {
            const int number = STEP > BLOCK ? (j * QUARTER + lane % 4 * EACH) / BLOCK : 0;
            return factors + e * 8 * FACTORS_BYTES + number * FACTOR;
        };
#pragma unroll
        for (int j = first; j < first + SCALED; ++j) {
            u32 x[GROUPS][EACH / 2];
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) load_values(x[group], rows, group, j);
#pragma unroll
            for (int pair = 0; pair < PAIRS; ++pair) {
                u32 a[EACH / 4][4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int e = 2 * pair + half;
                    const Factor factor(factor_at(e, j));
                    u32 weights[EACH / 2];
                    if constexpr (LATE) centre(weights, w[e].at[j], factor, masks);
                    else dequantize(weights, w[e].at[j], factor, masks);
#pragma unroll
                    for (int i = 0; i < EACH / 2; ++i) a[i / 2][i % 2 * 2 + half] = weights[i];
                }
#pragma unroll
                for (int i = 0; i < EACH / 4; ++i)
#pragma unroll
                    for (int group = 0; group < GROUPS; ++group)
                        MMA((LATE ? part : sums)[pair][group], a[i], x[group][2 * i], x[group][2 * i + 1]);
            }
        }
        if constexpr (!LATE) continue;
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
            const float scale = *(const T*)factor_at(e, first);
#pragma unroll
            for (int group = 0; group < GROUPS; ++group)
#pragma unroll
                for (int q = e % 2 * 2; q < e % 2 * 2 + 2; ++q)
                    sums[e / 2][group][q] += part[e / 2][group][q] * scale;
        }
    }
}

// Waits for the warps of a slice.
__device__ __forceinline__ void named_barrier(int name)
{
    asm volatile("bar.sync %0, %1;" :: "r"(name), "n"(32 * WARPS_N) : "memory");
}
