// y = weight_of(q @ k') @ v of 16-bit floats on tensor cores, for weights that are an elementwise function of each score:
// attention without a softmax (retention, sigmoid and squared ReLU attention, linear attention with a mask). Scores and
// weights are in float32 and stay in registers.
//
// A block computes ROWS queries and up to SIZE_V columns. It loops over the keys in tiles, which cp.async copies STAGES
// ahead. A warp has sixteen rows. Weights are multiplied in tf32, which has the digits of float16 and the range of float32,
// or, unless WIDE, in T.
//
// Types: T, of q, k and v; A and B, of the weights' operands; R, of results. Compile-time: SIZE_K, the size of a query
// rounded up to a multiple of 16; SIZE_V; KEYS of a tile; WARPS; STAGES; VECTOR_K and VECTOR_V, elements per copy (2, 4, 8);
// PAIRS, whether results are stored in pairs; WIDE; KIND_A and KIND_B, how these operands are read: 0 not at all, 1 one by
// one, 2 in pairs of adjacent keys; RANK, the number of batch axes. Generated: weight_of(score, a, b).

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"

constexpr int THREADS = WARPS * 32, ROWS = WARPS * 16;
// Eight elements of padding per row place the rows of a column in different banks.
constexpr int PITCH_K = SIZE_K + 8, PITCH_V = SIZE_V + 8;
constexpr int STAGE = KEYS * (PITCH_K + PITCH_V);

struct Ints {
    long long at[RANK];
};

struct Sizes {
    int rows, keys, size_k, size_v;
};

struct Steps {  // places of first elements, and distances of neighbours, in elements
    long long q_first, k_first, v_first;
    long long q_row, k_row, v_row, y_row;
    long long a_row, a_key, b_row, b_key;
};

// Copies KEYS rows from `first` on, and zeros past the last row and column.
template <int SIZE, int VECTOR>
__device__ __forceinline__ void load(T* tile, const T* from, int first, int rows, int columns, long long step)
{
    constexpr int PER_ROW = SIZE / VECTOR;
#pragma unroll 4
    for (int item = threadIdx.x; item < KEYS * PER_ROW; item += THREADS) {
        const int row = item / PER_ROW, column = item % PER_ROW * VECTOR;
        const bool inside = first + row < rows && column < columns;
        const T* const source = inside ? from + (first + row) * step + column : from;
        cp_async<VECTOR>(shared_address(tile + row * (SIZE + 8) + column), source, inside);
    }
}

// An operand of the weights of a thread: two rows, and of each eight keys two adjacent ones.
template <typename E, int KIND_OF> struct Operand {
    struct alignas(2 * sizeof(E)) Pair {
        E at[2];
    };
    const E* rows[2];
    long long step;
    int first;
    Pair found[KEYS / 8][2];

    __device__ __forceinline__ Operand(const E* from, int row, int end, long long of_row, long long of_key)
        : step(of_key), first(threadIdx.x % 4 * 2)
    {
        for (int half = 0; half < 2; ++half) rows[half] = from + min(row + half * 8, end - 1) * of_row;
    }

    // Reads those of a tile that begins with a key; others than the first `end` keys are those of the last one.
    template <bool WHOLE> __device__ __forceinline__ void read(int begin, int end)
    {
        if constexpr (KIND_OF > 0) {
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const int key = begin + j * 8 + first;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if constexpr (KIND_OF == 2 && WHOLE) {
                        found[j][half] = *(const Pair*)(rows[half] + key);
                    } else {
#pragma unroll
                        for (int i = 0; i < 2; ++i)
                            found[j][half].at[i] = rows[half][(WHOLE ? key + i : min(key + i, end - 1)) * step];
                    }
                }
            }
        }
    }

    __device__ __forceinline__ E at(int j, int i) const { return KIND_OF > 0 ? found[j][i / 2].at[i % 2] : E(0); }
};

typedef Operand<A, KIND_A> OperandA;
typedef Operand<B, KIND_B> OperandB;

// Two adjacent elements as numbers in tf32, whose bits are those of float32.
__device__ __forceinline__ uint2 widened(u32 pair)
{
    T two[2];
    memcpy(two, &pair, 4);
    return make_uint2(__float_as_uint(float(two[0])), __float_as_uint(float(two[1])));
}

// Tensor cores ignore the lower 13 bits: half a unit of the last remaining one rounds.
__device__ __forceinline__ u32 rounded(float weight)
{
    const u32 bits = __float_as_uint(weight);
    return fabsf(weight) < INFINITY ? bits + 0x1000 : bits;
}

// Adds the products of weights of sixteen keys and their values from `values` on.
__device__ __forceinline__ void add_values(float (&results)[SIZE_V / 8][4], const float (&first)[4], const float (&second)[4],
                                           const T* values)
{
    const int lane = threadIdx.x % 32;
    u32 weights[2][4];
    if constexpr (WIDE) {  // the terms of an instruction are in the order in which ldmatrix finds them
        for (int i = 0; i < 4; ++i) {
            const int at = i % 2 * 2 + i / 2;
            weights[0][i] = rounded(first[at]), weights[1][i] = rounded(second[at]);
        }
    } else {
        for (int half = 0; half < 2; ++half) {
            weights[0][half] = pair_of(first[half * 2], first[half * 2 + 1]);
            weights[0][half + 2] = pair_of(second[half * 2], second[half * 2 + 1]);
        }
    }
#pragma unroll
    for (int j = 0; j < SIZE_V / 16; ++j) {
        u32 found[4];
        ldmatrix_x4_trans(found, shared_address(values + lane % 16 * PITCH_V + j * 16 + lane / 16 * 8));
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if constexpr (WIDE) {
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const uint2 two = widened(found[side * 2 + part]);
                    mma_m16n8k8(results[2 * j + side], weights[part], two.x, two.y);
                }
            } else {
                mma_m16n8k16(results[2 * j + side], weights[0], found[side * 2], found[side * 2 + 1]);
            }
        }
    }
}

// Adds what the keys of a tile, and values behind them, contribute to a warp's rows.
template <bool WHOLE>
__device__ __forceinline__ void add_tile(float (&results)[SIZE_V / 8][4], const u32 (&queries)[SIZE_K / 16][4], const T* keys,
                                         const OperandA& a, const OperandB& b, int left)
{
    const int lane = threadIdx.x % 32;
    float scores[KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j)
#pragma unroll
        for (int c = 0; c < SIZE_K / 16; ++c) {
            u32 found[4];
            const int key = j * 16 + lane % 8 + lane / 16 * 8;
            ldmatrix_x4(found, shared_address(keys + key * PITCH_K + c * 16 + lane / 8 % 2 * 8));
            mma_m16n8k16(scores[2 * j], queries[c], found[0], found[1]);
            mma_m16n8k16(scores[2 * j + 1], queries[c], found[2], found[3]);
        }
#pragma unroll
    for (int j = 0; j < KEYS / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float weight = weight_of(scores[j][i], a.at(j, i), b.at(j, i));
            scores[j][i] = WHOLE || j * 8 + lane % 4 * 2 + i % 2 < left ? weight : 0;
        }
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j)
        add_values(results, scores[2 * j], scores[2 * j + 1], keys + KEYS * PITCH_K + j * 16 * PITCH_V);
}

extern "C" __global__ void __launch_bounds__(THREADS, SIZE_K + SIZE_V > 128 ? 1 : 12 / WARPS)
weighted(const T* q, const T* k, const T* v, const A* a, const B* b, R* y, int tiles, int across, Sizes s, Steps by,
        Ints stack, Ints of_q, Ints of_k, Ints of_v, Ints of_y, Ints of_a, Ints of_b)
{
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column0 = blockIdx.x % across * SIZE_V, m0 = blockIdx.x / across % tiles * ROWS + warp * 16;
    int rest = blockIdx.x / across / tiles;
    q += by.q_first, k += by.k_first, v += by.v_first + column0, y += column0;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const int size = (int)stack.at[axis], at = rest % size;
        q += at * of_q.at[axis], k += at * of_k.at[axis], v += at * of_v.at[axis], y += at * of_y.at[axis];
        if (KIND_A) a += at * of_a.at[axis];
        if (KIND_B) b += at * of_b.at[axis];
        rest /= size;
    }
    const int columns = s.size_v - column0, steps = (s.keys + KEYS - 1) / KEYS;
    const auto load_tile = [&](int step) {
        T* const to = buffers + step % STAGES * STAGE;
        load<SIZE_K, VECTOR_K>(to, k, step * KEYS, s.keys, s.size_k, by.k_row);
        load<SIZE_V, VECTOR_V>(to + KEYS * PITCH_K, v, step * KEYS, s.keys, columns, by.v_row);
    };
    grid_dependency_sync();
    for (int step = 0; step < STAGES; ++step) {
        if (step < steps) load_tile(step);
        cp_async_commit();
    }

    u32 queries[SIZE_K / 16][4];
#pragma unroll
    for (int c = 0; c < SIZE_K / 16; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = m0 + i % 2 * 8 + lane / 4, column = c * 16 + i / 2 * 8 + lane % 4 * 2;
            queries[c][i] = row < s.rows && column < s.size_k ? *(const u32*)(q + row * by.q_row + column) : 0;
        }

    float results[SIZE_V / 8][4] = {};
    OperandA of_scores(a, m0 + lane / 4, s.rows, by.a_row, by.a_key);
    OperandB others(b, m0 + lane / 4, s.rows, by.b_row, by.b_key);
    for (int step = 0; step < steps; ++step) {
        const int begin = step * KEYS;
        const bool whole = begin + KEYS <= s.keys;
        if (whole) of_scores.read<true>(begin, s.keys), others.read<true>(begin, s.keys);
        else of_scores.read<false>(begin, s.keys), others.read<false>(begin, s.keys);
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        const T* const keys = buffers + step % STAGES * STAGE;
        if (m0 < s.rows) {
            if (whole) add_tile<true>(results, queries, keys, of_scores, others, KEYS);
            else add_tile<false>(results, queries, keys, of_scores, others, s.keys - begin);
        }
        __syncthreads();
        if (step + STAGES < steps) load_tile(step + STAGES);
        cp_async_commit();
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = m0 + half * 8 + lane / 4;
        R* const to = y + row * by.y_row;
        if (row >= s.rows) continue;
#pragma unroll
        for (int j = 0; j < SIZE_V / 8; ++j) {
            const int column = j * 8 + lane % 4 * 2;
            struct alignas(2 * sizeof(R)) Pair {
                R at[2];
            } pair = {{R(results[j][half * 2]), R(results[j][half * 2 + 1])}};
            if (PAIRS) {
                if (column < columns) *(Pair*)(to + column) = pair;
            } else {
                if (column < columns) to[column] = pair.at[0];
                if (column + 1 < columns) to[column + 1] = pair.at[1];
            }
        }
    }
}
