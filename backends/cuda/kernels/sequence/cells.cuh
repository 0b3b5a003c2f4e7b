// The step of a cell of recurrent layers, in float32.
//
// Compile-time: CELL. Generated: activate(direction, which, x), the activation functions of the gates.

#include "sequence/layer.cuh"

// The biases of a unit: of every gate, those of input and state added up, and that of the state alone which GRU_LINEAR resets.
struct Biases {
    float of[GATES], inner;

    __device__ __forceinline__ void load(const T* b, const Layer& l, int direction, int j, bool exists)
    {
        const T* from = b + (long long)direction * 2 * GATES * l.hidden + j;
        inner = 0;
#pragma unroll
        for (int gate = 0; gate < GATES; ++gate) {
            const bool apart = CELL == GRU_LINEAR && gate == 2;
            of[gate] = 0;
            if (!b || !exists) continue;
            const float state = float(from[(GATES + gate) * l.hidden]);
            of[gate] = float(from[gate * l.hidden]) + (apart ? 0.0f : state);
            if (apart) inner = state;
        }
    }
};

// The state of a unit after a step, from the products of the inputs and of the state before; an LSTM's cell is updated.
__device__ __forceinline__ float next_state(int direction, const float (&shares)[GATES], const float (&sums)[GATES],
                                            const Biases& biases, float before, float& cell)
{
    float in[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; ++gate) in[gate] = shares[gate] + biases.of[gate];
    if constexpr (CELL == RNN) {
        return activate(direction, 0, sums[0] + in[0]);
    } else if constexpr (CELL == GRU_LINEAR) {
        const float z = activate(direction, 0, sums[0] + in[0]);
        const float k = activate(direction, 0, sums[1] + in[1]);
        const float candidate = activate(direction, 1, in[2] + k * (sums[2] + biases.inner));
        return candidate + z * (before - candidate);
    } else {
        const float input = activate(direction, 0, sums[0] + in[0]);
        const float forget = activate(direction, 0, sums[2] + in[2]);
        cell = forget * cell + input * activate(direction, 1, sums[3] + in[3]);
        return activate(direction, 0, sums[1] + in[1]) * activate(direction, 2, cell);
    }
}
