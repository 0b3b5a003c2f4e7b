// The sizes of a recurrent layer, and where its inputs' products, results and states are.
//
// Compile-time: CELL.

enum { RNN, GRU, GRU_LINEAR, LSTM };  // GRU_LINEAR resets the state after its product

constexpr int GATES = CELL == RNN ? 1 : CELL == LSTM ? 4 : 3;

struct Layer {
    int directions, batch, time, hidden, backward;
    // From one direction, sequence and step to the next: in shares of a row of inputs, in results, and in states.
    int share_direction, share_n, share_t, result_direction, result_n, result_t, state_direction, state_n;

    // Which step of its sequence a reader works on, of `length` steps, backward or not.
    __device__ __forceinline__ int step(int t, int length, bool reversed) const
    {
        return reversed && t < length ? length - 1 - t : t;
    }

    // Where the inputs' product is that a step of sequence n reads, of all gates.
    __device__ __forceinline__ long long share(int direction, int n, int step) const
    {
        return place(direction, n, step, share_direction, share_n, share_t) * (GATES * hidden);
    }

    // Where the state of a sequence is: initial or final, and after a step.
    __device__ __forceinline__ long long state(int direction, int n) const
    {
        return place(direction, n, 0, state_direction, state_n, 0) * hidden;
    }
    __device__ __forceinline__ long long result(int direction, int n, int step) const
    {
        return place(direction, n, step, result_direction, result_n, result_t) * hidden;
    }

    __device__ __forceinline__ static long long place(int direction, int n, int step, int by_direction, int by_n, int by_t)
    {
        return direction * (long long)by_direction + n * (long long)by_n + step * (long long)by_t;
    }
};
