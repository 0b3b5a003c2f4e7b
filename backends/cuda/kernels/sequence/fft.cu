// Discrete Fourier transforms of lines in shared memory. Compile-time: INVERSE; see lines.cuh for the rest.

#include "ptx/pdl.cuh"
#include "sequence/lines.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
fft(const X* x, const X* window, const A* unity, Y* y, int size, int coefficients, Lines l)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Block block(shared, l);
    block.load_roots(unity);
    grid_dependency_sync();
    block.load(x, window, size, l);
    block.transform_all<INVERSE>();
    block.store<INVERSE>(y, coefficients);
}
