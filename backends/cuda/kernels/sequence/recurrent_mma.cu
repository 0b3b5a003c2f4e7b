// Recurrent layers of many sequences, all steps in one launch, on tensor cores; recurrent_sequence.cu is for few. The products of
// inputs and gate weights are computed beforehand: `shares` [gate][hidden] of each row and direction. The blocks of a cluster share
// the units of a direction for ROWS sequences, and tell each other their states after every step, in float32.
//
// A warp has eight units, whose gates are the rows of two left operands (m16n8k16): a lane gets all gates of one unit for two
// sequences at a time, and computes their states. Weights stay in registers. They are multiplied as 16-bit numbers: float32 as the
// sum of two, scaled by a power of two for each gate of a unit, with all three products that matter; states are always such a sum.
// States of bounded cells need no scale unless those of a sequence are all tiny, or its initial state is large: then the product
// is computed again, with a scale for each sequence.
//
// T is the type of the tensors. Compile-time: CELL, GRU_LINEAR or LSTM; BLOCKS of a cluster; UNITS of the state per block,
// a multiple of eight; ROWS, too; HIDDEN, all units; STEPS, of sixteen terms; TERMS, the numbers that a weight is the sum of.
// Generated: KIND and mma_m16n8k16; and as in cells.cuh.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "sequence/cells.cuh"
#include "sequence/exchange.cuh"

constexpr int WARPS = UNITS / 8, THREADS = 32 * WARPS, TILES = ROWS / 8;
// Floats from one state to the next: a warp reads eight of them without conflicts.
constexpr int PITCH = 16 * STEPS + 8;
constexpr bool WIDE = KIND[0] == 'b';  // has the exponents of float32
constexpr int FLUSH = 4;               // tensor cores truncate their sums, so that few terms are added there
// States between these limits are multiplied with the usual scale.
constexpr float USUAL = WIDE ? 1.0f : 4096.0f, SMALL = 1.0f / 4096, LARGE = 8.0f;

// Two numbers as the sums of two 16-bit numbers each.
__device__ __forceinline__ void cut(float x, float y, u32& high, u32& low)
{
    high = pair_of(x, y);
    const float2 kept = WIDE ? make_float2(__uint_as_float(high << 16), __uint_as_float(high & 0xffff0000u))
                             : halves_of(high);
    low = pair_of(x - kept.x, y - kept.y);
}

// 2 to the power of `to` minus the exponent of x, within limits: x times it is below 2^(to + 1).
__device__ __forceinline__ float scale_of(float x, int to)
{
    const int exponent = max((__float_as_int(x) >> 23) - 127, -112);
    return __int_as_float((127 + to - exponent) << 23);
}

// The reciprocal of a power of two.
__device__ __forceinline__ float inverse(float scale) { return __int_as_float((254 << 23) - __float_as_int(scale)); }

struct alignas(16) Fragment {
    u32 at[4];
};

extern "C" __global__ void __launch_bounds__(THREADS)
recurrent_mma(const float* shares, const T* r, const T* b, const int* lengths, const T* h0, const T* c0, T* y,
              T* h_end, T* c_end, Layer l)
{
    // Barriers; states of even and odd steps [row][PITCH]; cells; and the steps of each sequence.
    extern __shared__ float4 memory[];
    float* states = (float*)(memory + 1);
    float2* cells = (float2*)(states + 2 * ROWS * PITCH) + threadIdx.x;
    int* steps = (int*)(cells - threadIdx.x + TILES * THREADS);

    const int rank = blockIdx.x % BLOCKS, first = blockIdx.x / BLOCKS * ROWS, direction = blockIdx.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const int j = rank * UNITS + warp * 8 + row, rows = min(ROWS, l.batch - first), tiles = (rows + 7) / 8;
    const bool exists = j < HIDDEN, reversed = l.backward || direction == 1;
    const Exchange exchange = {shared_address(memory), rows * ((HIDDEN + 3) / 4) * 16};

    // The weights of this lane's unit, and what their scales are undone by.
    Fragment high[STEPS][2], low[TERMS == 2 ? STEPS : 1][2];
    float down[4];
#pragma unroll
    for (int gate = 0; gate < 4; ++gate) {
        const T* from = r + ((long long)(direction * GATES + gate) * HIDDEN + j) * HIDDEN;
        const auto weight = [&](int k) {
            return gate < GATES && exists && k < HIDDEN ? float(from[k]) : 0.0f;
        };
        float up = 1;
        if (TERMS == 2) {
            float most = 0;
            for (int k = column; k < STEPS * 16; k += 8) {
                most = fmaxf(most, fmaxf(fabsf(weight(k)), fabsf(weight(k + 1))));
            }
            for (int other = 1; other < 4; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
            up = scale_of(most, 13);
        }
        down[gate] = inverse(up * USUAL);
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                const int k = step * 16 + part * 8 + column, word = gate % 2 + part * 2;
                u32 second;
                cut(weight(k) * up, weight(k + 1) * up, high[step][gate / 2].at[word], second);
                if (TERMS == 2) low[step][gate / 2].at[word] = second;
            }
    }
    grid_dependency_sync();

    for (int i = threadIdx.x; i < 2 * ROWS * PITCH; i += THREADS) {
        const int n = i / PITCH, k = i % PITCH;
        states[i] = h0 && n < rows && k < HIDDEN ? float(h0[l.state(direction, first + n) + k]) : 0.0f;
    }
    for (int n = threadIdx.x; n < ROWS; n += THREADS) {
        steps[n] = n >= rows ? 0 : lengths ? min(lengths[first + n], l.time) : l.time;
    }
    __syncthreads();
    Biases biases;
    biases.load(b, l, direction, j, exists);
    for (int tile = 0; tile < tiles; ++tile) {
        float begin[2] = {};
        for (int i = 0; i < 2; ++i) {
            const int n = tile * 8 + column + i;
            if (c0 && exists && n < rows) begin[i] = float(c0[l.state(direction, first + n) + j]);
        }
        cells[tile * THREADS] = make_float2(begin[0], begin[1]);
    }
    const float* mine = shares + direction * (long long)l.share_direction * GATES * HIDDEN + min(j, HIDDEN - 1);
    T* results = y + l.result(direction, first, 0) + j;
    // The shares of two sequences of a tile; any, where there is none.
    float next[2][GATES];
    const auto load_shares = [&](int tile, int t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int n = min(tile * 8 + column + i, rows - 1);
            const int place = (first + n) * l.share_n + l.step(t, steps[n], reversed) * l.share_t;
            const float* from = mine + place * (long long)(GATES * HIDDEN);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) next[i][gate] = from[gate * HIDDEN];
        }
    };
    if (l.time > 0) load_shares(0, 0);
    exchange.begin();

    // Adds the product of this warp's weights with eight states to sums; returns the largest number of this lane's state.
    const auto multiply = [&](float (&sums)[2][4], const float* h, float scale) {
        float most = 0, parts[2][4] = {}, small[2][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const float2 x = *(const float2*)(h + step * 16), z = *(const float2*)(h + step * 16 + 8);
            most = fmaxf(fmaxf(fmaxf(most, fabsf(x.x)), fabsf(x.y)), fmaxf(fabsf(z.x), fabsf(z.y)));
            u32 b0, b1, low0, low1;
            cut(x.x * scale, x.y * scale, b0, low0);
            cut(z.x * scale, z.y * scale, b1, low1);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                mma_m16n8k16(parts[i], high[step][i].at, b0, b1);
                mma_m16n8k16(small[i], high[step][i].at, low0, low1);
                if constexpr (TERMS == 2) mma_m16n8k16(small[i], low[step][i].at, b0, b1);
            }
            if (step % FLUSH < FLUSH - 1 && step < STEPS - 1) continue;
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    sums[i][q] += parts[i][q] + small[i][q];
                    parts[i][q] = small[i][q] = 0;
                }
        }
        for (int other = 1; other < 4; other *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, other));
        return most;
    };

    // A block sends states of the next step when it has those of this one from all others, which have read the
    // states before by then: two buffers are enough.
    for (int t = 0; t < l.time; ++t) {
        const float* h = states + t % 2 * ROWS * PITCH;
        float* later = states + (1 - t % 2) * ROWS * PITCH;
        for (int tile = 0; tile < tiles; ++tile) {
            float sums[2][4] = {};
            const float* from = h + (tile * 8 + row) * PITCH + column;
            const float most = multiply(sums, from, USUAL);
            if constexpr (!WIDE) {
                const bool unusual = most > 0 && (most < SMALL || most > LARGE);
                if (__any_sync(~0u, unusual)) {
                    memset(sums, 0, sizeof(sums));
                    const float scale = unusual ? scale_of(most, 13) : USUAL;
                    multiply(sums, from, scale);
                    for (int i = 0; i < 2; ++i) {
                        const float more = USUAL * inverse(__shfl_sync(~0u, scale, (column + i) * 4));
                        for (int gate = 0; gate < GATES; ++gate) sums[gate / 2][gate % 2 * 2 + i] *= more;
                    }
                }
            }

            float now[2][GATES];
            memcpy(now, next, sizeof(now));
            const bool last = tile + 1 == tiles;
            if (!last || t + 1 < l.time) load_shares(last ? 0 : tile + 1, t + last);
            const float2 kept = cells[tile * THREADS];
            float cell[2] = {kept.x, kept.y}, found[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int n = tile * 8 + column + i, length = steps[n];
                const bool alive = t < length;
                const float before = h[n * PITCH + min(j, HIDDEN)];
                float own[GATES], updated = cell[i];
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) own[gate] = sums[gate / 2][gate % 2 * 2 + i] * down[gate];
                const float result = next_state(direction, now[i], own, biases, before, updated);
                if (alive) cell[i] = updated;
                found[i] = !exists ? 0.0f : alive ? result : before;
                if (y && exists && n < rows) {
                    const int place = n * l.result_n + l.step(t, length, reversed) * l.result_t;
                    results[place * (long long)HIDDEN] = T(alive ? result : 0.0f);
                }
            }
            cells[tile * THREADS] = make_float2(cell[0], cell[1]);

            // A lane has two neighbouring units of one sequence, and then four, which it sends to every second block.
            const int odd = row % 2, n = tile * 8 + column + odd;
            const float other = __shfl_xor_sync(~0u, found[1 - odd], 4);
            const float2 two = odd ? make_float2(other, found[1]) : make_float2(found[0], other);
            if constexpr (BLOCKS > 1) {
                const int half = row / 2 % 2, unit = j - row % 4;
                const float2 more = make_float2(__shfl_xor_sync(~0u, two.x, 8), __shfl_xor_sync(~0u, two.y, 8));
                const float4 four = half ? make_float4(more.x, more.y, two.x, two.y)
                                         : make_float4(two.x, two.y, more.x, more.y);
                const u32 there = shared_address(later + n * PITCH + unit);
                if (n < rows && unit < HIDDEN)
#pragma unroll
                    for (int block = 0; block < BLOCKS; block += 2) {
                        dsmem_send(there, exchange.behind(t), block + half, four);
                    }
            } else if (n < rows && j - odd < HIDDEN)
                *(float2*)(later + n * PITCH + j - odd) = two;
        }
        exchange.end(t);
    }

    for (int tile = 0; tile < tiles; ++tile) {
        const float2 kept = cells[tile * THREADS];
        for (int i = 0; i < 2; ++i) {
            const int n = tile * 8 + column + i;
            if (!exists || n >= rows) continue;
            const long long at = l.state(direction, first + n) + j;
            if (h_end) h_end[at] = T(states[(l.time % 2 * ROWS + n) * PITCH + j]);
            if (CELL == LSTM && c_end) c_end[at] = T(i ? kept.y : kept.x);
        }
    }
}
