// Col2Im: an element of an image is the sum of the elements of overlapping blocks there. One thread per element.
//
// X is the type of the elements, A that of the arithmetic, Index that of positions. Compile-time, so that nothing
// is divided by a variable and only blocks that may overlap are visited: KERNEL, STRIDE and DILATION, each followed
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
    for (int a = 0; a < KERNEL0; ++a) {
        const int d = block_of<STRIDE0, DILATION0>(depth, a, sizes.blocks[0]);
        if (d < 0) continue;
        for (int b = 0; b < KERNEL1; ++b) {
            const int r = block_of<STRIDE1, DILATION1>(row, b, sizes.blocks[1]);
            if (r < 0) continue;
            const Index line = ((Index)d * sizes.blocks[1] + r) * sizes.blocks[2];
            const X* taps = from + (Index)(a * KERNEL1 + b) * KERNEL2 * blocks + line;
#pragma unroll 4
            for (int c = 0; c < KERNEL2; ++c) {
                const int s = block_of<STRIDE2, DILATION2>(column, c, sizes.blocks[2]);
                if (s >= 0) sum += A(taps[c * blocks + s]);
            }
        }
    }
    y[i] = X(sum);
}
