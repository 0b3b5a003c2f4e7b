// Reductions of the middle axis of [outer][count][inner]. Long axes are split into parts of at most
// `chunk` elements, whose results another launch reduces. So every result is computed by a shallow tree
// of partial results, which keeps rounding errors small and results reproducible.
//
// X is the type of the first operands, Y that of the final results, A that of the arithmetic. Generated:
// State, the accumulator; start(), element(x, index), combine(a, b), finish(a, count). Compile-time: ROWS,
// the warps of a block; LANES of a warp and WARPS that share a row; VECTOR, adjacent elements that a thread reads at once;
// FIRST and LAST: whether this launch reads elements, and whether it stores results. With LAUNCHES, a macro, the next
// kernel, which has constants to read, starts before reduce_columns waits.

#include "ptx/warp.cuh"
#include "ptx/pdl.cuh"

constexpr int COLUMNS = 32;  // lanes of a warp

template <bool FIRST_TYPE, typename P, typename Q> struct Choice { using type = P; };
template <typename P, typename Q> struct Choice<false, P, Q> { using type = Q; };
using From = Choice<FIRST, X, State>::type;
using To = Choice<LAST, Y, State>::type;

template <typename V> __device__ __forceinline__ State read(V x, long long index)
{
    if constexpr (FIRST) {
        return element(A(x), index);
    } else {
        return x;
    }
}
template <typename V> __device__ __forceinline__ To give(V a, long long total)
{
    if constexpr (LAST) {
        return To(finish(a, A(total)));
    } else {
        return a;
    }
}

template <typename V> struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

// Words that a thread reads before it combines their elements.
constexpr int AT_ONCE = sizeof(From) * VECTOR <= 4 ? 8 : 4;

// inner = 1: LANES lanes of each of WARPS warps share a part, adjacent lanes read adjacent words. `chunk` and `count` are
// multiples of VECTOR.
extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS)
reduce_rows(const From* x, To* y, long long results, int parts, int chunk, long long count,
            long long total)
{
    constexpr int GROUPS = ROWS * COLUMNS / LANES, STRIDE = LANES * WARPS;
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, share = group % WARPS;
    const long long i = blockIdx.x * (long long)(GROUPS / WARPS) + group / WARPS;
    const long long row = i / parts, first = (i - row * parts) * chunk;
    const Words<From>* from = (const Words<From>*)(x + row * count + first);
    const int length = i < results ? int(min((long long)chunk, count - first) / VECTOR) : 0;
    grid_dependency_sync();
    State result = start();
    for (int begin = share * LANES + lane; begin < length; begin += AT_ONCE * STRIDE) {
        Words<From> found[AT_ONCE];
#pragma unroll
        for (int w = 0; w < AT_ONCE; ++w)
            if (begin + w * STRIDE < length) found[w] = from[begin + w * STRIDE];
#pragma unroll
        for (int w = 0; w < AT_ONCE; ++w) {
            if (begin + w * STRIDE >= length) break;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                result = combine(result, read(found[w].at[e], first + (begin + w * STRIDE) * VECTOR + e));
        }
    }
#pragma unroll
    for (int other = LANES / 2; other; other /= 2)
        result = combine(result, shuffle_xor(result, other));
    if constexpr (WARPS > 1) {
        __shared__ State shares[GROUPS];
        if (lane == 0) shares[group] = result;
        __syncthreads();
        if (share == 0 && lane == 0)
            for (int k = 1; k < WARPS; ++k) result = combine(result, shares[group + k]);
    }
    if (share == 0 && lane == 0 && i < results) y[i] = give(result, total);
}

// inner > 1: a block reduces a part of 32 adjacent columns. Threads that read the same VECTOR of them divide the rows. All
// that a thread reads at once is in flight together, as few blocks wait for little else.
extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS)
reduce_columns(const From* x, To* y, int inner, int parts, int chunk, long long count,
               long long total)
{
    constexpr int OF_ROW = COLUMNS / VECTOR, STRIDE = ROWS * VECTOR;  // threads of a row, and rows that are read at once
    const int lane = threadIdx.x % COLUMNS, warp = threadIdx.x / COLUMNS, share = threadIdx.x / OF_ROW;
    const int block = gridDim.z > 1 ? blockIdx.z * gridDim.y + blockIdx.y : blockIdx.y;  // of columns
    if (block >= (inner + COLUMNS - 1) / COLUMNS) return;
    const int column = block * COLUMNS + threadIdx.x % OF_ROW * VECTOR, step = inner / VECTOR;
    const long long first = blockIdx.x % parts * (long long)chunk;
    const Words<From>* from = (const Words<From>*)(x + (blockIdx.x / parts * count + first) * inner + column);
    const int length = min((long long)chunk, count - first);
#if LAUNCHES
    grid_dependency_launch();
#endif
    grid_dependency_sync();
    State results[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) results[e] = start();
    for (int begin = column < inner ? share : length; begin < length; begin += AT_ONCE * STRIDE) {
        Words<From> found[AT_ONCE];
#pragma unroll
        for (int w = 0; w < AT_ONCE; ++w)
            if (begin + w * STRIDE < length) found[w] = from[(long long)(begin + w * STRIDE) * step];
#pragma unroll
        for (int w = 0; w < AT_ONCE; ++w) {
            if (begin + w * STRIDE >= length) break;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                results[e] = combine(results[e], read(found[w].at[e], first + begin + w * STRIDE));
        }
    }
#pragma unroll
    for (int other = OF_ROW; other < COLUMNS; other *= 2)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) results[e] = combine(results[e], shuffle_xor(results[e], other));
    __shared__ State shares[ROWS][COLUMNS];
    if (lane < OF_ROW)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) shares[warp][lane * VECTOR + e] = results[e];
    __syncthreads();
    const int own = block * COLUMNS + lane;
    if (warp == 0 && own < inner) {
        State result = shares[0][lane];
#pragma unroll
        for (int k = 1; k < ROWS; ++k) result = combine(result, shares[k][lane]);
        y[blockIdx.x * (long long)inner + own] = give(result, total);
    }
}

// inner > 1, few rows: a thread reduces VECTOR adjacent columns. `inner` and `results` are in words of these.
extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS)
reduce_few(const From* x, To* y, long long results, int inner, int count, long long total)
{
    const long long i = blockIdx.x * (long long)(ROWS * COLUMNS) + threadIdx.x;
    if (i >= results) return;
    const Words<From>* from = (const Words<From>*)x + i / inner * count * inner + i % inner;
    grid_dependency_sync();
    State result[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) result[e] = start();
#pragma unroll 8
    for (int k = 0; k < count; ++k) {
        const Words<From> found = from[(long long)k * inner];
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) result[e] = combine(result[e], read(found.at[e], k));
    }
    Words<To> words;
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) words.at[e] = give(result[e], total);
    ((Words<To>*)y)[i] = words;
}
