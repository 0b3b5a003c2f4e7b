// Control flow of a CUDA graph: sets the conditions of its conditional nodes. One thread.

extern "C" __device__ void cudaGraphSetConditional(unsigned long long node, unsigned int value);

// Sets the value of a conditional node of the running graph. Outside of a graph, where RECORDED is
// false, there is none, and the host reads the value from memory.
__device__ __forceinline__ void tell(int64 node, bool value)
{
    if constexpr (RECORDED) cudaGraphSetConditional(node, value);
}

// Takes the first branch where the condition holds, otherwise the second.
extern "C" __global__ void choose(int64 node, const uint8* cond)
{
    tell(node, *cond != 0);
}

// Advances a loop to its next (or first) iteration: counter[0] is its number, and counter[1] whether it
// runs. There are at most `count` iterations, or `most` where that is null.
extern "C" __global__ void
next_round(int64 node, int64* counter, const int64* count, int64 most, const uint8* going,
           int first)
{
    const int64 number = first ? 0 : counter[0] + 1;
    const bool more = number < (count ? *count : most) && (!going || *going != 0);
    counter[0] = number;
    counter[1] = more;
    tell(node, more);
}
