// Steps of a plan as one kernel of one block, each of which would be a small kernel otherwise. What steps write is read
// by others after a barrier; those between two barriers are independent, and warps share them out. The bodies of their
// kernels are called with the grid and the indices that they would have had, as parameters of the same names.

#include "ptx/barrier.cuh"

struct Blocks {
    int x, y, z;  // the grid
    int first;    // the thread of this block, a multiple of 32, that is the first one of the step
    __device__ __forceinline__ dim3 grid() const { return dim3{unsigned(x), unsigned(y), unsigned(z)}; }
    __device__ __forceinline__ int count() const { return x * y * z; }
    __device__ __forceinline__ dim3 at(int number) const
    {
        if (y * z == 1) return dim3{unsigned(number), 0, 0};
        if (x * z == 1) return dim3{0, unsigned(number), 0};
        return dim3{unsigned(number % x), unsigned(number / x % y), unsigned(number / x / y)};
    }
};

// Calls body(grid, block, its index, the thread) for the threads of all blocks of THREADS, side by side: these share
// nothing.
template <int THREADS, typename Body> __device__ __forceinline__ void side_by_side(const Blocks& blocks, Body body)
{
    int own = threadIdx.x - blocks.first;
    if (own < 0) own += blockDim.x;
    const int count = blocks.count() * THREADS;
    for (; own < count; own += blockDim.x)
        body(blocks.grid(), dim3{THREADS, 1, 1}, blocks.at(own / THREADS), dim3{unsigned(own % THREADS), 0, 0});
}

// The same of one block after the other, by as many of the first threads of this one.
template <int THREADS, typename Body> __device__ __forceinline__ void in_turn(const Blocks& blocks, Body body)
{
    if (threadIdx.x >= THREADS) return;
    const int count = blocks.count();
    for (int i = 0; i < count; ++i) {
        if (i) first_threads_sync<THREADS>();
        body(blocks.grid(), dim3{THREADS, 1, 1}, blocks.at(i), dim3{threadIdx.x, 0, 0});
    }
}
