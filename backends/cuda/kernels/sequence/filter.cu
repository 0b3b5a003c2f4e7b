// Filters of lines: a Fourier transform, arithmetic of each coefficient, and the transform back, in shared memory (long
// convolutions: Hyena, S4; GFNet).
//
// Compile-time: SPECTRUM, the number of coefficients that are filtered: half of a symmetric spectrum, or all; see lines.cuh for the
// rest. Generated: chain(real, imaginary, a0, ..., r0, r1), the arithmetic, which stores its results in its last two parameters;
// OPERANDS(X), which is X(0) X(1) ... of its other operands; A0, A1, ... their types; and CHAIN_ARGUMENTS.

#include "move/axes.cuh"
#include "ptx/pdl.cuh"
#include "sequence/lines.cuh"

#define READS(i) , const A##i *a##i, Ints strides##i, Index step##i
#define WORDS(i) A##i word##i[AHEAD];
#define FROM(i) Index offset##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define READ(i) word##i[q] = a##i[offset##i + k * step##i];

extern "C" __global__ void __launch_bounds__(THREADS)
filter(const X* x, const A* unity, Y* y, int size, int coefficients, Lines l, Ints sizes, Ints factors, Ints shifts OPERANDS(READS))
{
    extern __shared__ __align__(16) unsigned char shared[];
    Block block(shared, l);
    block.load_roots(unity);
    grid_dependency_sync();
    block.load(x, x, size, l);
    block.transform_all<false>();
    for (int t0 = threadIdx.x; t0 < SPECTRUM * LINES; t0 += THREADS * AHEAD) {
        OPERANDS(WORDS)
#pragma unroll
        for (int q = 0; q < AHEAD; ++q) {
            const int t = min(t0 + q * THREADS, SPECTRUM * LINES - 1), k = t / LINES;
            const int line = min(block.first + t % LINES, block.inner - 1);
            OPERANDS(FROM)
            for_each_axis(Index(block.row * block.inner + line), sizes, factors, shifts,
                          [&](int axis, Index position) { OPERANDS(MOVE) });
            OPERANDS(READ)
        }
#pragma unroll
        for (int q = 0; q < AHEAD; ++q) {
            const int t = t0 + q * THREADS, k = t / LINES, line = t % LINES;
            if (t >= SPECTRUM * LINES) break;
            const A in0 = block.from[t].real, in1 = block.from[t].imaginary;
            A real, imaginary;
            chain(CHAIN_ARGUMENTS);
            block.to[t] = {real, imaginary};
            if (k && LENGTH - k >= SPECTRUM) block.to[(LENGTH - k) * LINES + line] = {real, -imaginary};
        }
    }
    block.swap();
    block.transform_all<true>();
    block.store<true>(y, coefficients);
}
