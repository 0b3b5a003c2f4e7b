// Recurrent layers whose steps are all in one launch: their sizes, where sequences are, and the step of a cell.
//
// Compile-time: CELL. Generated: activate(direction, which, x), the activation functions of the gates.

enum { RNN, GRU, GRU_LINEAR, LSTM };  // GRU_LINEAR resets the state after its product

constexpr int GATES = CELL == RNN ? 1 : CELL == LSTM ? 4 : 3;

struct Layer {
    int directions, batch, time, hidden, backward, batch_first;
    int share_direction, share_row;  // from one direction, and from one row of inputs, to the next, in shares of a row

    // Which step of its sequence a reader works on, of `length` steps, backward or not.
    __device__ __forceinline__ int step(int t, int length, bool reversed) const
    {
        return reversed && t < length ? length - 1 - t : t;
    }

    // Where the inputs' product is that a step of sequence n reads, of all gates.
    __device__ __forceinline__ long long share(int direction, int n, int step) const
    {
        const int row = batch_first ? n * time + step : step * batch + n;
        return (direction * (long long)share_direction + row * (long long)share_row) * (GATES * hidden);
    }

    // Where the state of a sequence is: initial or final, and after a step.
    __device__ __forceinline__ long long state(int direction, int n) const
    {
        return (batch_first ? n * (long long)directions + direction : direction * (long long)batch + n) * hidden;
    }
    __device__ __forceinline__ long long result(int direction, int n, int step) const
    {
        const long long place = batch_first ? (n * time + step) * (long long)directions + direction
                                            : step * (long long)(directions * batch) + (direction * batch + n);
        return place * hidden;
    }
};

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
