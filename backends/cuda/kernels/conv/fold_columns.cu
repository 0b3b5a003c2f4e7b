// Col2Im: an element of an image is the sum of the elements of overlapping blocks there. One thread per element, or
// LAST, if channels are adjacent in both, per VECTOR channels of a pixel; the elements of blocks are read where they are.
//
// X is the type of the elements, A that of the arithmetic, Index that of positions. Compile-time, so that nothing
// is divided by a variable and only elements that may be there are visited: KERNEL, STRIDE and DILATION, each followed
// by 0, 1 or 2, the axis.

#include "elementwise/words.cuh"
#include "ptx/pdl.cuh"

struct Steps {  // of x, if LAST: distances, the first element, and how many channels there are, and are side by side
    int image, outer, tap, block, origin, channels, beside;
};

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

// x is [image][channel][tap][block], y [image][channel][place], or LAST [image][place][channel]; count: of threads.
extern "C" __global__ void __launch_bounds__(256)
fold_columns(const X* x, X* y, Index count, Sizes sizes, Steps steps)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const int out1 = sizes.out[1], out2 = sizes.out[2];
    const int groups = LAST ? steps.channels / VECTOR : 1;
    const Index pixel = i / groups;
    Index rest = pixel / out2;
    const int column = int(pixel - rest * out2) + sizes.pad[2];
    Index plane = rest / out1;
    const int row = int(rest - plane * out1) + sizes.pad[1];
    rest = plane;
    plane = rest / sizes.out[0];
    const int depth = int(rest - plane * sizes.out[0]) + sizes.pad[0];
    const Index blocks = (Index)sizes.blocks[0] * sizes.blocks[1] * sizes.blocks[2];
    const Index of_tap = LAST ? steps.tap : blocks, of_block = LAST ? steps.block : 1;
    const X* from = x;
    if constexpr (LAST) {
        const int channel = int(i - pixel * groups) * VECTOR, part = channel / steps.beside;
        from += steps.origin + plane * steps.image + part * steps.outer + (channel - part * steps.beside);
    } else {
        from += plane * (KERNEL0 * KERNEL1 * KERNEL2) * blocks;
    }
    grid_dependency_sync();
    A sum[VECTOR] = {};
    for (int a = first_of<STRIDE0, DILATION0, KERNEL0>(depth); a < KERNEL0; a += PERIOD<STRIDE0, DILATION0>) {
        const int d = block_of<STRIDE0, DILATION0>(depth, a, sizes.blocks[0]);
        if (d < 0) continue;
        for (int b = first_of<STRIDE1, DILATION1, KERNEL1>(row); b < KERNEL1; b += PERIOD<STRIDE1, DILATION1>) {
            const int r = block_of<STRIDE1, DILATION1>(row, b, sizes.blocks[1]);
            if (r < 0) continue;
            const Index line = ((Index)d * sizes.blocks[1] + r) * sizes.blocks[2];
            const X* taps = from + (Index)(a * KERNEL1 + b) * KERNEL2 * of_tap + line * of_block;
#pragma unroll 4
            for (int c = first_of<STRIDE2, DILATION2, KERNEL2>(column); c < KERNEL2; c += PERIOD<STRIDE2, DILATION2>) {
                const int s = block_of<STRIDE2, DILATION2>(column, c, sizes.blocks[2]);
                if (s < 0) continue;
                const Words<X> found = words<VECTOR>(taps + c * of_tap + s * of_block);
#pragma unroll
                for (int q = 0; q < VECTOR; ++q) sum[q] += A(found.at[q]);
            }
        }
    }
    Words<X> result;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) result.at[q] = X(sum[q]);
    *(Words<X>*)(y + i * VECTOR) = result;
}
