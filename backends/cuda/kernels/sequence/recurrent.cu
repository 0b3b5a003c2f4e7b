// Recurrent layers, one launch per step for both directions. The products of inputs and gate weights are
// computed beforehand: `shares` [gate][hidden] of each row and direction. A warp computes one unit of the state.
// T is the type of the tensors, A that of the arithmetic, in which states are kept.
//
// Compile-time: CELL. Generated: activate(direction, which, x), the activation functions of the gates.

#include "sequence/layer.cuh"

struct Unit {
    int direction, n, j, lane, at;  // `at`: step of the sequence that this one works on
    bool exists, alive, backward;
};

__device__ __forceinline__ Unit unit_of(const Layer& l, const int* lengths, int t)
{
    const int i = blockIdx.x * 8 + threadIdx.x / 32;
    Unit u;
    u.lane = threadIdx.x % 32;
    u.j = i % l.hidden;
    u.n = i / l.hidden % l.batch;
    u.direction = i / l.hidden / l.batch;
    u.exists = u.direction < l.directions;
    const int length = lengths && u.exists ? min(lengths[u.n], l.time) : l.time;
    u.alive = t < length;
    u.backward = l.backward || u.direction == 1;
    u.at = l.step(t, length, u.backward);
    return u;
}

// The sum of h[k] * r[row][k]; all lanes get it.
__device__ __forceinline__ A product(const A* h, const T* r, long long row, int hidden, int lane)
{
    A sum = 0;
    for (int k = lane; k < hidden; k += 32) sum += h[k] * A(r[row * hidden + k]);
#pragma unroll
    for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
}

// The pre-activation of gate g without the product with the state: the inputs' product and both biases, or that of `w`.
__device__ __forceinline__ A entering(const Unit& u, const Layer& l, const A* shares, const T* b,
                                      int gate, bool both)
{
    const int own = gate * l.hidden + u.j, width = GATES * l.hidden;
    A sum = shares[l.share(u.direction, u.n, u.at) + own];
    if (b) {
        const T* bias = b + (long long)u.direction * 2 * width + own;
        sum += A(bias[0]) + (both ? A(bias[width]) : A(0));
    }
    return sum;
}

// GRU only: the update gate, and the state multiplied by the reset gate.
extern "C" __global__ void __launch_bounds__(256)
recurrent_reset(const A* shares, const T* r, const T* b, const int* lengths, const A* h, A* update,
                A* kept, Layer l, int t)
{
    const Unit u = unit_of(l, lengths, t);
    const long long first = ((long long)u.direction * l.batch + u.n) * l.hidden;
    const long long row = (long long)u.direction * GATES * l.hidden + u.j;
    if (!u.exists) return;
    const A z = product(h + first, r, row, l.hidden, u.lane);
    const A k = product(h + first, r, row + l.hidden, l.hidden, u.lane);
    if (u.lane) return;
    update[first + u.j] = activate(u.direction, 0, z + entering(u, l, shares, b, 0, true));
    kept[first + u.j] = activate(u.direction, 0, k + entering(u, l, shares, b, 1, true))
                        * h[first + u.j];
}

extern "C" __global__ void __launch_bounds__(256)
recurrent_step(const A* shares, const T* r, const T* b, const T* peepholes, const int* lengths,
               const A* h, A* h_next, A* cell, const A* update, const A* kept, T* y, Layer l, int t,
               int input_forget)
{
    const Unit u = unit_of(l, lengths, t);
    if (!u.exists) return;
    const long long first = ((long long)u.direction * l.batch + u.n) * l.hidden;
    const long long own = first + u.j;
    A sums[GATES];
    for (int gate = CELL == GRU ? 2 : 0; gate < GATES; ++gate) {
        const long long row = ((long long)u.direction * GATES + gate) * l.hidden + u.j;
        sums[gate] = product((CELL == GRU ? kept : h) + first, r, row, l.hidden, u.lane);
    }
    if (u.lane) return;
    A result = 0;
    if constexpr (CELL == RNN) {
        result = activate(u.direction, 0, sums[0] + entering(u, l, shares, b, 0, true));
    } else if constexpr (CELL == GRU) {
        const A candidate = activate(u.direction, 1, sums[2] + entering(u, l, shares, b, 2, true));
        result = candidate + update[own] * (h[own] - candidate);
    } else if constexpr (CELL == GRU_LINEAR) {
        const A z = activate(u.direction, 0, sums[0] + entering(u, l, shares, b, 0, true));
        const A k = activate(u.direction, 0, sums[1] + entering(u, l, shares, b, 1, true));
        if (b) sums[2] += A(b[(long long)u.direction * 2 * GATES * l.hidden + 5 * l.hidden + u.j]);
        const A inner = entering(u, l, shares, b, 2, false) + k * sums[2];
        const A candidate = activate(u.direction, 1, inner);
        result = candidate + z * (h[own] - candidate);
    } else {
        const T* p = peepholes + (long long)u.direction * 3 * l.hidden + u.j;
        for (int gate = 0; gate < GATES; ++gate)
            sums[gate] += entering(u, l, shares, b, gate, true);
        if (peepholes) sums[0] += A(p[0]) * cell[own];
        const A input = activate(u.direction, 0, sums[0]);
        if (peepholes) sums[2] += A(p[2 * l.hidden]) * cell[own];
        const A forget = input_forget ? A(1) - input : activate(u.direction, 0, sums[2]);
        const A next = forget * cell[own] + input * activate(u.direction, 1, sums[3]);
        if (peepholes) sums[1] += A(p[l.hidden]) * next;
        result = activate(u.direction, 0, sums[1]) * activate(u.direction, 2, next);
        if (u.alive) cell[own] = next;
    }
    h_next[own] = u.alive ? result : h[own];
    if (!y) return;
    y[l.result(u.direction, u.n, u.at) + u.j] = T(u.alive ? result : A(0));
}

// Converts states between the type of tensors and the type they are kept in here; `rounded` keeps them as they are.
__device__ __forceinline__ long long outside(long long i, const Layer& l)
{
    const int j = i % l.hidden, n = i / l.hidden % l.batch, direction = i / l.hidden / l.batch;
    return l.state(direction, n) + j;
}

extern "C" __global__ void __launch_bounds__(256)
recurrent_begin(const T* state, A* kept, T* rounded, long long count, Layer l)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const T found = state ? state[outside(i, l)] : T(0);
    kept[i] = A(found);
    if (rounded) rounded[i] = found;
}

extern "C" __global__ void __launch_bounds__(256)
recurrent_end(const A* kept, T* state, long long count, Layer l)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < count) state[outside(i, l)] = T(kept[i]);
}
