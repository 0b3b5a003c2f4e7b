// Steps of a plan as one kernel of one block, each of which would be a small kernel otherwise: what a step writes is read
// by the next ones after a barrier. The bodies of their kernels are called with the grid and the indices that they would
// have had, as parameters of the same names.

struct Blocks {
    int x, y, z;
    __device__ __forceinline__ int count() const { return x * y * z; }
    __device__ __forceinline__ dim3 at(int number) const
    {
        return dim3{unsigned(number % x), unsigned(number / x % y), unsigned(number / x / y)};
    }
};

// Calls body(grid, block, its index, the thread) for the threads of all blocks of THREADS, side by side: these share
// nothing.
template <int THREADS, typename Body> __device__ __forceinline__ void side_by_side(const Blocks& blocks, Body body)
{
    const dim3 grid{unsigned(blocks.x), unsigned(blocks.y), unsigned(blocks.z)};
    const int count = blocks.count() * THREADS;
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        body(grid, dim3{THREADS, 1, 1}, blocks.at(i / THREADS), dim3{unsigned(i % THREADS), 0, 0});
}

// The same of one block after the other: this one, of as many threads.
template <int THREADS, typename Body> __device__ __forceinline__ void in_turn(const Blocks& blocks, Body body)
{
    const dim3 grid{unsigned(blocks.x), unsigned(blocks.y), unsigned(blocks.z)};
    const int count = blocks.count();
    for (int i = 0; i < count; ++i) {
        if (i) __syncthreads();
        body(grid, dim3{THREADS, 1, 1}, blocks.at(i), dim3{threadIdx.x, 0, 0});
    }
}
