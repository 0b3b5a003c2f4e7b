// Control flow of a graph: what tells its conditional nodes how to go on. One thread.

extern "C" __device__ void cudaGraphSetConditional(unsigned long long node, unsigned int value);

// Sets what a conditional node of the running graph goes by. Outside of a graph, where RECORDED is
// false, there is none, and the host looks at the memory itself.
__device__ __forceinline__ void tell(int64 node, bool value)
{
    if constexpr (RECORDED) cudaGraphSetConditional(node, value);
}

// Takes the first branch where the condition holds, the second one elsewhere.
extern "C" __global__ void choose(int64 node, const uint8* cond)
{
    tell(node, *cond != 0);
}

// Goes on to the next round of a loop, or to the first: counter[0] is its number, and counter[1]
// whether it takes place. There are `count` rounds at most, or `most` where that is null.
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
