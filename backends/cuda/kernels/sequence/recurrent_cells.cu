// One step of all cells of recurrent layers whose states are multiplied by another kernel. One thread per unit of a sequence.
// The products of inputs, `shares`, are [gate][hidden] of each row and direction, those of states, `sums`,
// [direction][sequence][gate][hidden], or null for states of zeros. T is the type of the tensors; states are kept in float32.
//
// Compile-time: CELL. `rounded` is the next state for that other kernel, if it is not of float32. Generated: as in cells.cuh.

#include "ptx/pdl.cuh"
#include "sequence/cells.cuh"

extern "C" __global__ void __launch_bounds__(256)
recurrent_cells(const float* shares, const float* sums, const T* b, const int* lengths, const float* h, float* h_next,
                T* rounded, float* cells, T* y, long long count, Layer l, int t)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int j = i % l.hidden, place = i / l.hidden, n = place % l.batch, direction = place / l.batch;
    grid_dependency_sync();
    Biases biases;
    biases.load(b, l, direction, j, true);
    const int length = lengths ? min(lengths[n], l.time) : l.time;
    const int step = l.step(t, length, l.backward || direction == 1);
    const bool alive = t < length;
    const float* from = shares + l.share(direction, n, step) + j;
    const float before = h[i];
    float in[GATES], own[GATES], cell = CELL == LSTM ? cells[i] : 0;
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) {
        in[gate] = from[gate * l.hidden];
        own[gate] = sums ? sums[(place * (long long)GATES + gate) * l.hidden + j] : 0.0f;
    }
    const float result = next_state(direction, in, own, biases, before, cell);
    const float state = alive ? result : before;
    h_next[i] = state;
    if (rounded) rounded[i] = T(state);
    if (CELL == LSTM && alive) cells[i] = cell;
    if (y) y[l.result(direction, n, step) + j] = T(alive ? result : 0.0f);
}
