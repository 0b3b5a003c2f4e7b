// c = epilogue(sum over k of a[m][k] * b[k][n]) on tensor cores, of computed matrices wherever they are: transposed, heads side by
// side in rows, or one matrix for several products.
//
// 16-bit floats of one type are multiplied as they are. Others are cut into tf32 numbers as warps read them: float32 into two,
// of which three products are added up (tf32x3.cuh), or with PARTS 1 into one; a 16-bit float is a single one. Tensor cores
// truncate their sums, so that sums on them have at most 64 terms, and the CUDA cores add these.
//
// A block computes a tile of BM x BN results. cp.async copies tiles of both operands, in the order that they have in memory,
// STAGES - 1 steps ahead. SLICES groups of warps multiply different terms of a step; their sums are added in order.
//
// Types: T and U, the elements of `a` and `b`; Z, of the epilogue's operands; R, of results. Compile-time: BM BN WARPS_M
// WARPS_N SLICES STAGES PARTS; RANK, the number of batch axes; ACROSS_A, whether adjacent elements of `a` are those of a
// column, and ACROSS_B, whether those of `b` are those of a row; VECTOR_A and VECTOR_B, the elements per copy; VECTOR_C, the
// results per store; TRANSPOSED, whether the epilogue's rows are columns here; and those of the epilogue. Macro: DIRECT_CODE, whether elements are multiplied as they are.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "gemm/singles.cuh"
#include "gemm/epilogue.cuh"

constexpr bool DIRECT = DIRECT_CODE;
constexpr int TILE_WARPS = WARPS_M * WARPS_N, THREADS = TILE_WARPS * SLICES * 32;
constexpr int TERMS = DIRECT ? 64 : 32;  // of a step
constexpr int EACH = DIRECT ? 16 : 8;    // of an instruction
constexpr int TM = BM / WARPS_M / 16, TN = BN / WARPS_N / 8;

struct Ints {
    long long at[RANK];
};

struct Steps {  // distances of neighbours, in elements
    long long a_m, a_k, b_k, b_n, c_m;
    long long a_first, b_first;  // of the operands' first elements from the tensors' own
};

// A tile of an operand in shared memory: LINES rows of `a` or columns of `b`, each of TERMS terms, or, if ACROSS, terms of
// LINES elements. The elements that a warp reads at a time are in different banks.
template <typename E, int LINES, bool ACROSS, int VECTOR> struct Tile {
    static constexpr int INNER = ACROSS ? LINES : TERMS, OUTER = ACROSS ? TERMS : LINES;
    static constexpr int PITCH = INNER + (ACROSS || sizeof(E) == 2 ? 8 : 4), BYTES = OUTER * PITCH * sizeof(E);

    __device__ __forceinline__ static int place(int line, int term)
    {
        return ACROSS ? term * PITCH + line : line * PITCH + term;
    }

    __device__ __forceinline__ static float at(const unsigned char* tile, int line, int term)
    {
        return float(((const E*)tile)[place(line, term)]);
    }

    // Reads four matrices of eight lines by 16 bytes of terms for mma.sync, of which the second has further terms if
    // TERMS_FIRST, else further lines. Without ldmatrix, which moves 16 bytes of lines or transposes two bytes, one by one.
    template <bool TERMS_FIRST>
    __device__ __forceinline__ static void read(u32 (&found)[4], const unsigned char* tile, int line, int term)
    {
        constexpr int HALF = EACH / 2;  // terms of a matrix
        const int lane = threadIdx.x % 32;
        if constexpr (DIRECT || (!ACROSS && sizeof(E) == 4)) {
            const int second = lane / 8 % 2, last = lane / 16, first = lane % 8;
            line += (TERMS_FIRST ? last : second) * 8;
            term += (TERMS_FIRST ? second : last) * HALF;
            const u32 from = shared_address(tile) + (ACROSS ? place(line, term + first) : place(line + first, term)) * (int)sizeof(E);
            if constexpr (ACROSS) ldmatrix_x4_trans(found, from);
            else ldmatrix_x4(found, from);
        } else {
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const int lines = TERMS_FIRST ? q / 2 : q % 2, terms = TERMS_FIRST ? q % 2 : q / 2;
                found[q] = __float_as_uint(at(tile, line + lines * 8 + lane / 4, term + terms * HALF + lane % 4));
            }
        }
    }
};

// Copies a thread's words of the tiles of one step after the other, with zeros past the ends. They are equally far apart, so
// that little is computed for each.
template <typename E, int LINES, bool ACROSS, int VECTOR> struct Loader {
    typedef Tile<E, LINES, ACROSS, VECTOR> To;
    static constexpr int WORDS = To::INNER / VECTOR, ROWS = THREADS / WORDS, COPIES = (To::OUTER + ROWS - 1) / ROWS;
    static constexpr bool SINGLE = VECTOR * sizeof(E) < 4;
    static_assert(THREADS % WORDS == 0 && (To::OUTER % ROWS == 0 || ROWS % To::OUTER == 0), "those that copy do so alike");

    const E* from;          // the first word in the next step
    int to, lines, terms;   // its place in a tile, and how many lines and terms there are from it on
    long long apart, step;  // elements between words, and between steps

    __device__ __forceinline__ Loader(const E* first, int line0, int m, int k, long long of_line, long long of_term)
    {
        const int outer = threadIdx.x / WORDS, inner = threadIdx.x % WORDS * VECTOR;
        const int line = line0 + (ACROSS ? inner : outer), term = ACROSS ? outer : inner;
        from = first + line * of_line + term * of_term;
        to = (outer * To::PITCH + inner) * (int)sizeof(E);
        lines = m - line, terms = k - term;
        apart = ROWS * (ACROSS ? of_term : of_line), step = TERMS * of_term;
    }

    __device__ __forceinline__ void copy(u32 tile)
    {
        if (ROWS > To::OUTER && threadIdx.x >= To::OUTER * WORDS) return;
        const int row = ACROSS ? lines : terms, rows = row > 0 ? ACROSS ? terms : lines : 0;
        const E* source = from;
        Singles<SINGLE ? COPIES : 1> singles;
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            const u32 target = tile + to + i * (ROWS * To::PITCH * (int)sizeof(E));
            const bool inside = i * ROWS < rows;
            if constexpr (SINGLE) singles.load(i, target, source, inside);
            else cp_async<VECTOR * sizeof(E) / sizeof(T)>(target, (const T*)source, inside);
            source += apart;
        }
        if constexpr (SINGLE) singles.store();
        from += step, terms -= TERMS;
    }
};

typedef Tile<T, BM, ACROSS_A, VECTOR_A> TileA;
typedef Tile<U, BN, ACROSS_B, VECTOR_B> TileB;
constexpr int STAGE = TileA::BYTES + TileB::BYTES;

struct Loaders {
    Loader<T, BM, ACROSS_A, VECTOR_A> a;
    Loader<U, BN, ACROSS_B, VECTOR_B> b;

    __device__ __forceinline__ void copy(u32 stage) { a.copy(stage), b.copy(stage + TileA::BYTES); }
};

// Numbers as sums of two in tf32. The tensor cores ignore the lower 13 bits, so that adding half a unit of the last remaining
// one rounds. `cross` is `high` in the product with the other's low part: if CAREFUL, without infinities and NaNs, which have
// no low part. Otherwise a low part of these is NaN, and so are all sums that they are in.
template <typename E, int COUNT, bool CAREFUL> struct Cut {
    u32 high[COUNT], cross[COUNT], low[COUNT];

    __device__ __forceinline__ void set(int i, u32 bits)
    {
        const float value = __uint_as_float(bits);
        const bool taken = !CAREFUL || fabsf(value) < INFINITY;
        if constexpr (sizeof(E) == 2) {
            high[i] = bits, cross[i] = taken ? bits : 0;
        } else if constexpr (PARTS == 1) {
            high[i] = fabsf(value) < INFINITY ? bits + 0x1000 : bits;
        } else {
            high[i] = bits & 0xffffe000;
            cross[i] = taken ? high[i] : 0;
            low[i] = taken ? __float_as_uint(value - __uint_as_float(high[i])) + 0x1000 : 0;
        }
    }
};

struct Warp {
    int slice, row, column;  // its terms of a step, and where its results begin in the tile

    __device__ __forceinline__ Warp()
    {
        const int warp = threadIdx.x / 32, own = warp % TILE_WARPS;
        slice = warp / TILE_WARPS;
        row = own / WARPS_N * (TM * 16), column = own % WARPS_N * (TN * 8);
    }
};

typedef float Sums[TM][TN][4];

__device__ __forceinline__ void add(float (&totals)[4], const float (&sums)[4])
{
#pragma unroll
    for (int q = 0; q < 4; ++q) totals[q] += sums[q];
}

__device__ __forceinline__ void add_all(Sums& totals, const Sums& sums)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) add(totals[i][j], sums[i][j]);
}

#if DIRECT_CODE
template <bool CAREFUL>
__device__ __forceinline__ void multiply_step(Sums& totals, const unsigned char* stage, const Warp& warp)
{
    Sums sums = {};
#pragma unroll
    for (int part = 0; part < TERMS / EACH / SLICES; ++part) {
        const int k = (part * SLICES + warp.slice) * EACH;
        u32 left[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) TileA::read<false>(left[i], stage, warp.row + i * 16, k);
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            u32 right[4];
            TileB::read<true>(right, stage + TileA::BYTES, warp.column + j * 8, k);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                MMA(sums[i][j], left[i], right[0], right[1]);
                MMA(sums[i][j + 1], left[i], right[2], right[3]);
            }
        }
    }
    add_all(totals, sums);
}
#else
template <bool CAREFUL>
__device__ __forceinline__ void multiply_step(Sums& totals, const unsigned char* stage, const Warp& warp)
{
    constexpr bool CUT_A = PARTS == 2 && sizeof(T) == 4, CUT_B = PARTS == 2 && sizeof(U) == 4;
    Sums of_step = {};
#pragma unroll
    for (int part = 0; part < TERMS / EACH / SLICES; ++part) {
        const int k = (part * SLICES + warp.slice) * EACH;
        Cut<T, 4, CAREFUL> left[TM];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            u32 found[4];
            TileA::read<false>(found, stage, warp.row + i * 16, k);
#pragma unroll
            for (int q = 0; q < 4; ++q) left[i].set(q, found[q]);
        }
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            u32 found[4];
            Cut<U, 4, CAREFUL> right;
            TileB::read<true>(found, stage + TileA::BYTES, warp.column + j * 8, k);
#pragma unroll
            for (int q = 0; q < 4; ++q) right.set(q, found[q]);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int q = 0; q < 4; q += 2) {
                    float of_part[4] = {};
                    float(&sums)[4] = PARTS == 1 ? of_step[i][j + q / 2] : of_part;
                    if constexpr (CUT_A) MMA(sums, left[i].low, right.cross[q], right.cross[q + 1]);
                    if constexpr (CUT_B) MMA(sums, left[i].cross, right.low[q], right.low[q + 1]);
                    MMA(sums, left[i].high, right.high[q], right.high[q + 1]);
                    if constexpr (PARTS == 2) add(totals[i][j + q / 2], sums);
                }
        }
    }
    if constexpr (PARTS == 1) add_all(totals, of_step);
}
#endif

// Whether a sum of the block is NaN, as it is where a number has no low part.
__device__ __forceinline__ bool any_nan(const Sums& sums)
{
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q)
                if (sums[i][j][q] != sums[i][j][q]) found = 1;
    __syncthreads();
    return found;
}

// Adds up the products of all steps.
template <bool CAREFUL>
__device__ __forceinline__ void multiply_all(Sums& totals, const unsigned char* shared, int steps, const Warp& warp, Loaders loaders)
{
    const u32 stages = shared_address(shared);
#pragma unroll
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) loaders.copy(stages + step * STAGE);
        cp_async_commit();
    }
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) loaders.copy(stages + (step + STAGES - 1) % STAGES * STAGE);
        cp_async_commit();
        multiply_step<CAREFUL>(totals, shared + step % STAGES * STAGE, warp);
    }
}

// Adds the sums of all slices, in order, to those of the first, through shared memory.
__device__ __forceinline__ void add_slices(Sums& totals, float* shared, const Warp& warp)
{
    constexpr int GROUP = TILE_WARPS * 32, OWN = TM * TN * 4;
    const int thread = threadIdx.x % GROUP;
    float* of_warp = (float*)totals;
    __syncthreads();
    if (warp.slice) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) shared[((warp.slice - 1) * OWN + i) * GROUP + thread] = of_warp[i];
    }
    __syncthreads();
    if (warp.slice) return;
#pragma unroll
    for (int other = 0; other < SLICES - 1; ++other)
#pragma unroll
        for (int i = 0; i < OWN; ++i) of_warp[i] += shared[(other * OWN + i) * GROUP + thread];
}

// Where results go, and where the operands of the epilogue are.
struct Place {
    R* c;
    const Z *bias, *z0, *z1;
    long long first, row;  // the product's first result for the epilogue, and the distance of rows in memory
    int m, n;

    // The operands of adjacent results of a row, which lie together unless these are transposed.
    template <int N> __device__ __forceinline__ Operands<N> operands(int line, int column) const
    {
        if (TRANSPOSED || line >= m || column >= n) return {};
        return operands_at<N>(first + (long long)line * n + column, line, column, n - column, bias, z0, z1);
    }

    template <int N>
    __device__ __forceinline__ void store(const float (&sums)[N], const Operands<N>& with, int line, int column) const
    {
        if (line >= m || column >= n) return;
        R* to = c + line * row + column;
        if constexpr (TRANSPOSED) {
            Neighbours<R, N> results;
#pragma unroll
            for (int q = 0; q < N; ++q) {
                const float one[1] = {sums[q]};
                const long long at = first + (long long)(column + q) * m + line;
                if (column + q < n)
                    results.at[q] = with_epilogue(one, operands_at<1>(at, column + q, line, 1, bias, z0, z1)).at[0];
            }
            keep(to, results, n - column);
        } else {
            keep(to, with_epilogue(sums, with), n - column);
        }
    }
};

// Stores 16 x 8 * TN results of a warp. Where words of four are aligned, lanes exchange sums in pairs, so that each has four
// adjacent ones, of the first of two eights of columns or of the second. All operands are requested before anything is stored.
__device__ __forceinline__ void store_rows(const Place& place, const float (&sums)[TN][4], int line, int column)
{
    constexpr bool FOURS = VECTOR_C == 4;
    constexpr int N = FOURS ? 4 : 2, STEP = N / 2, COUNT = TN / STEP;
    const int lane = threadIdx.x % 32, odd = lane % 2;
    line += lane / 4;
    column += FOURS ? lane % 4 / 2 * 4 + odd * 8 : lane % 4 * 2;
    Operands<N> with[COUNT][2];
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            with[j][half] = place.operands<N>(line + half * 8, column + j * STEP * 8);
#pragma unroll
    for (int j = 0; j < COUNT; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float own[N];
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                const float first = sums[j * STEP][half * 2 + q];
                if constexpr (FOURS) {
                    const float second = sums[j * STEP + 1][half * 2 + q];
                    const float found = __shfl_xor_sync(~0u, odd ? first : second, 1);
                    own[q] = odd ? found : first;
                    own[2 + q] = odd ? second : found;
                } else {
                    own[q] = first;
                }
            }
            place.store(own, with[j][half], line + half * 8, column + j * STEP * 8);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS)
strided_mma(const T* a, const U* b, R* c, const Z* bias, const Z* z0, const Z* z1, int m, int n, int k, int tiles_n, int tiles,
            Steps by, Ints stack, Ints of_a, Ints of_b, Ints of_c)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const int tile = blockIdx.x % tiles, number = blockIdx.x / tiles;
    const int m0 = tile / tiles_n * BM, n0 = tile % tiles_n * BN;
    a += by.a_first, b += by.b_first;
    int rest = number;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const int size = (int)stack.at[axis], at = rest % size;
        a += at * of_a.at[axis];
        b += at * of_b.at[axis];
        c += at * of_c.at[axis];
        rest /= size;
    }
    const int steps = (k + TERMS - 1) / TERMS;
    const Loaders loaders = {{a, m0, m, k, by.a_m, by.a_k}, {b, n0, n, k, by.b_n, by.b_k}};
    grid_dependency_sync();
    Sums totals = {};
    const Warp warp;
    multiply_all<false>(totals, shared, steps, warp, loaders);
    if constexpr (!DIRECT && PARTS == 2) {
        if (any_nan(totals)) {
            memset(totals, 0, sizeof totals);
            multiply_all<true>(totals, shared, steps, warp, loaders);
        }
    }
    if constexpr (SLICES > 1) {
        add_slices(totals, (float*)shared, warp);
        if (warp.slice) return;
    }
    const Place place = {c, bias, z0, z1, (long long)number * m * n, by.c_m, m, n};
#pragma unroll
    for (int i = 0; i < TM; ++i)
        store_rows(place, totals[i], m0 + warp.row + i * 16, n0 + warp.column);
}
