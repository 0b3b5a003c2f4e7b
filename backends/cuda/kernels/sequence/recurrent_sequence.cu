// Recurrent layers, a whole sequence in one launch. The products of inputs and gate weights are computed beforehand:
// `shares` [gate][hidden] of each row and direction. The blocks of a cluster share the units of a direction for ROWS sequences:
// each keeps the weights of its units in registers, and tells the others the states of these after every step.
// T is the type of the tensors; states are kept, and sums added, in float32.
//
// Compile-time: BLOCKS of a cluster; UNITS of the state per block; ROWS; SLICES, lanes that share the sums of a
// unit, with CHUNKS words of four terms each; THREADS; FIXED, whether the weights are constant, so that they are read before the
// kernel waits; and as in cells.cuh.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "sequence/cells.cuh"
#include "sequence/exchange.cuh"

constexpr int LINES = GATES * UNITS;
constexpr int WIDTH = CHUNKS * SLICES * 4, ITEMS = (ROWS * UNITS + THREADS - 1) / THREADS;

// One unit of one sequence.
struct Unit {
    int row, u, n, j, length;
    bool exists;
};

extern "C" __global__ void __launch_bounds__(THREADS)
recurrent_sequence(const float* shares, const T* r, const T* b, const int* lengths, const T* h0, const T* c0,
                   T* y, T* h_end, T* c_end, Layer l)
{
    // Barriers, states of even and odd steps [row][WIDTH], sums [row][gate][unit].
    extern __shared__ float4 memory[];
    float* states = (float*)(memory + 1);
    float* sums = states + 2 * ROWS * WIDTH;

    const int rank = blockIdx.x % BLOCKS, first = blockIdx.x / BLOCKS * ROWS, direction = blockIdx.y;
    const int slice = threadIdx.x % SLICES, unit = threadIdx.x / SLICES;
    const bool reversed = l.backward || direction == 1;
    const Exchange exchange = {shared_address(memory), min(ROWS, l.batch - first) * l.hidden * 4};

    // The weights of this lane: of all gates of a unit, every SLICES-th word.
    float w[GATES][CHUNKS][4];
    const auto load_weights = [&]() {
        const int j = rank * UNITS + unit;
        const bool exists = unit < UNITS && j < l.hidden;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
            const T* from = r + ((long long)(direction * GATES + gate) * l.hidden + j) * l.hidden;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const int k = (c * SLICES + slice) * 4 + q;
                    w[gate][c][q] = exists && k < l.hidden ? float(from[k]) : 0.0f;
                }
        }
    };
    if (FIXED) load_weights();
    grid_dependency_sync();
    if (!FIXED) load_weights();

    for (int i = threadIdx.x; i < 2 * ROWS * WIDTH; i += THREADS) {
        const int row = i / WIDTH % ROWS, k = i % WIDTH;
        const bool given = h0 && i < ROWS * WIDTH && first + row < l.batch && k < l.hidden;
        states[i] = given ? float(h0[l.state(direction, first + row) + k]) : 0.0f;
    }

    // The units that this thread computes, their cells, and the shares of the next step.
    Unit units[ITEMS];
    Biases biases[ITEMS];
    float cells[ITEMS], next[ITEMS][GATES];
    const auto load_shares = [&](int i, int t) {
        const Unit& u = units[i];
        const float* from = shares + l.share(direction, u.n, l.step(t, u.length, reversed)) + u.j;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) next[i][gate] = from[gate * l.hidden];
    };
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int item = threadIdx.x + i * THREADS;
        Unit& u = units[i];
        u = {item / UNITS, item % UNITS, first + item / UNITS, rank * UNITS + item % UNITS, l.time, false};
        u.exists = u.row < ROWS && u.n < l.batch && u.j < l.hidden;
        if (lengths && u.exists) u.length = min(lengths[u.n], l.time);
        cells[i] = c0 && u.exists ? float(c0[l.state(direction, u.n) + u.j]) : 0.0f;
        biases[i].load(b, l, direction, u.j, u.exists);
        if (u.exists && l.time > 0) load_shares(i, 0);
    }
    exchange.begin();

    // A block sends states of the next step when it has those of this one from all others, which have read the
    // states before by then: two buffers are enough.
    for (int t = 0; t < l.time; ++t) {
        const float* h = states + t % 2 * ROWS * WIDTH;
        float* later = states + (1 - t % 2) * ROWS * WIDTH;
        float found[GATES][ROWS] = {};
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c)
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const float4 x = *(const float4*)(h + row * WIDTH + (c * SLICES + slice) * 4);
#pragma unroll
                for (int gate = 0; gate < GATES; ++gate) {
                    float& sum = found[gate][row];
                    sum += w[gate][c][0] * x.x;
                    sum += w[gate][c][1] * x.y;
                    sum += w[gate][c][2] * x.z;
                    sum += w[gate][c][3] * x.w;
                }
            }
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate)
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                float sum = found[gate][row];
#pragma unroll
                for (int other = SLICES / 2; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
                if ((gate * ROWS + row) % SLICES == slice && unit < UNITS) {
                    sums[row * LINES + gate * UNITS + unit] = sum;
                }
            }
        __syncthreads();

        float results[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const Unit& u = units[i];
            if (!u.exists) continue;
            const float* totals = sums + u.row * LINES + u.u;
            const float before = h[u.row * WIDTH + u.j];
            const bool alive = t < u.length;
            float own[GATES], cell = cells[i];
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) own[gate] = totals[gate * UNITS];
            const float result = next_state(direction, next[i], own, biases[i], before, cell);
            if (alive) cells[i] = cell;
            const float state = alive ? result : before;
            float* there = later + u.row * WIDTH + u.j;
            if constexpr (BLOCKS > 1)
#pragma unroll
                for (int block = 0; block < BLOCKS; ++block) {
                    dsmem_send(shared_address(there), exchange.behind(t), block, state);
                }
            else
                *there = state;
            results[i] = alive ? result : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const Unit& u = units[i];
            if (!u.exists) continue;
            if (t + 1 < l.time) load_shares(i, t + 1);
            if (!y) continue;
            y[l.result(direction, u.n, l.step(t, u.length, reversed)) + u.j] = T(results[i]);
        }
        exchange.end(t);
    }

#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const Unit& u = units[i];
        if (!u.exists) continue;
        const long long at = l.state(direction, u.n) + u.j;
        if (h_end) h_end[at] = T(states[(l.time % 2 * ROWS + u.row) * WIDTH + u.j]);
        if (CELL == LSTM && c_end) c_end[at] = T(cells[i]);
    }
}
