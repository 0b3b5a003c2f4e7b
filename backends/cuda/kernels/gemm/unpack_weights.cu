// Weights of a few bits as elements of their type, for a product that reads them more than once: to[n][k] =
// (integer - zero) * scale, zeros behind the last term. They lie as gemv_packed.cu wants them.
//
// A thread has the integers of a word. Compile-time: X; BITS; BLOCK; ZEROS, whether a zero stands beside every scale.

#include "ptx/pdl.cuh"

constexpr int EACH = 32 / BITS;
constexpr unsigned MASK = (1u << BITS) - 1;

extern "C" __global__ void __launch_bounds__(256)
unpack_weights(const unsigned int* w, const X* scales, X* to, long long count, int words, int bytes, int blocks,
               int depth, int ldb)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x, row = i / words;
    const int word = i - row * words, first = word * EACH;
    grid_dependency_sync();
    if (i >= count) return;
    const unsigned integers = w[row * (bytes / 4) + word / 16 * 16 + word % 4 * 4 + word / 4 % 4];
#pragma unroll
    for (int q = 0; q < EACH; ++q) {
        const int k = first + q;
        if (k >= ldb) break;
        const X* const own = scales + (row * blocks + k / BLOCK) * (1 + ZEROS);
        const float zero = ZEROS ? float(own[1 * ZEROS]) : float(1 << (BITS - 1));
        const float value = (float(integers >> q * BITS & MASK) - zero) * float(own[0]);
        to[row * ldb + k] = X(k < depth ? value : 0.0f);
    }
}
