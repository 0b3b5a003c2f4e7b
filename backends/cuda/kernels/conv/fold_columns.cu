// Col2Im: an element of an image is the sum of the elements of overlapping blocks there. One thread per element.
//
// X is the type of the elements, A that of the arithmetic, Index that of positions. Compile-time, so that nothing
// is divided by a variable and only elements that may be there are visited: KERNEL, STRIDE and DILATION, each followed
// by 0, 1 or 2, the axis.

#include "ptx/pdl.cuh"

struct Sizes {  // of three spatial axes: blocks, elements of the image, and pads before them
    int blocks[3], out[3], pad[3];
};

// Returns the block that has the element at `at` of the padded image as its k-th, or -1.
template <int STEP, int APART> __device__ __forceinline__ int block_of(int at, int k, int blocks)
{
    const int begin = at - k * APART;
    const int block = begin / STEP;
    return begin >= 0 && block * STEP == begin && block < blocks ? block : -1;
}

template <int A, int B> constexpr int COMMON = COMMON<B, A % B>;  // the greatest common divisor
template <int A> constexpr int COMMON<A, 0> = A;

// From one element of a block that may be at a place to the next one, and the first one, or KERNEL if there is none.
template <int STEP, int APART> constexpr int PERIOD = STEP / COMMON<STEP, APART>;

template <int STEP, int APART, int KERNEL> __device__ __forceinline__ int first_of(int at)
{
    if constexpr (APART == 1) {
        return at % STEP;
    } else {
        for (int k = 0; k < PERIOD<STEP, APART>; ++k)
            if ((at - k * APART) % STEP == 0) return k;
        return KERNEL;
    }
}

// x is [image][channel][tap][block], y [image][channel][place].
extern "C" __global__ void __launch_bounds__(256)
fold_columns(const X* x, X* y, Index count, Sizes sizes)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const int out1 = sizes.out[1], out2 = sizes.out[2];
    Index rest = i / out2;
    const int column = int(i - rest * out2) + sizes.pad[2];
    Index plane = rest / out1;
    const int row = int(rest - plane * out1) + sizes.pad[1];
    rest = plane;
    plane = rest / sizes.out[0];
    const int depth = int(rest - plane * sizes.out[0]) + sizes.pad[0];
    const Index blocks = (Index)sizes.blocks[0] * sizes.blocks[1] * sizes.blocks[2];
    const X* from = x + plane * (KERNEL0 * KERNEL1 * KERNEL2) * blocks;
    grid_dependency_sync();
    A sum = 0;
    for (int a = first_of<STRIDE0, DILATION0, KERNEL0>(depth); a < KERNEL0; a += PERIOD<STRIDE0, DILATION0>) {
        const int d = block_of<STRIDE0, DILATION0>(depth, a, sizes.blocks[0]);
        if (d < 0) continue;
        for (int b = first_of<STRIDE1, DILATION1, KERNEL1>(row); b < KERNEL1; b += PERIOD<STRIDE1, DILATION1>) {
            const int r = block_of<STRIDE1, DILATION1>(row, b, sizes.blocks[1]);
            if (r < 0) continue;
            const Index line = ((Index)d * sizes.blocks[1] + r) * sizes.blocks[2];
            const X* taps = from + (Index)(a * KERNEL1 + b) * KERNEL2 * blocks + line;
#pragma unroll 4
            for (int c = first_of<STRIDE2, DILATION2, KERNEL2>(column); c < KERNEL2; c += PERIOD<STRIDE2, DILATION2>) {
                const int s = block_of<STRIDE2, DILATION2>(column, c, sizes.blocks[2]);
                if (s >= 0) sum += A(taps[c * blocks + s]);
            }
        }
    }
    y[i] = X(sum);
}
