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
// PAIRS, whether results are stored in pairs; WIDE; OPERANDS, the number of the weights' operands; RANK, the number of batch
// axes. Generated: weight_of(score, a, b).

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

extern "C" __global__ void __launch_bounds__(THREADS)
weighed(const T* q, const T* k, const T* v, const A* a, const B* b, R* y, int tiles, int across, Sizes s, Steps by,
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
        if (OPERANDS > 0) a += at * of_a.at[axis];
        if (OPERANDS > 1) b += at * of_b.at[axis];
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
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        const T* const keys = buffers + step % STAGES * STAGE;
        const T* const values = keys + KEYS * PITCH_K;
        if (m0 < s.rows) {
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
                    const int row = min(m0 + i / 2 * 8 + lane / 4, s.rows - 1);
                    const int key = step * KEYS + j * 8 + lane % 4 * 2 + i % 2, there = min(key, s.keys - 1);
                    const A first = OPERANDS > 0 ? a[row * by.a_row + there * by.a_key] : A(0);
                    const B second = OPERANDS > 1 ? b[row * by.b_row + there * by.b_key] : B(0);
                    scores[j][i] = key < s.keys ? weight_of(scores[j][i], first, second) : 0;
                }
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j)
                add_values(results, scores[2 * j], scores[2 * j + 1], values + j * 16 * PITCH_V);
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
