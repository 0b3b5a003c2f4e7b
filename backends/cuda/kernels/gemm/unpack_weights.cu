// Unpacks weights of a few bits to elements of type X, for a product that reads them more than once: to[n][k] =
// (integer - zero) * scale, zeros past the last term. They are packed as for gemv_packed.cu.
//
// A thread has at least eight terms, of one block, and writes words of 16 bytes. Compile-time: X; BITS; BLOCK; ZEROS,
// whether every scale has a zero point.

#include "ptx/pdl.cuh"

constexpr int EACH = 32 / BITS, TERMS = EACH < 8 ? 8 : EACH, CHUNK = 16 / sizeof(X);
constexpr unsigned MASK = (1u << BITS) - 1;
struct alignas(16) Chunk {
    X at[CHUNK];
};

extern "C" __global__ void __launch_bounds__(256)
unpack_weights(const unsigned int* w, const X* scales, X* to, long long count, int per_row, int bytes, int blocks,
               int depth, int ldb)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x, row = i / per_row;
    const int first = (int)(i - row * per_row) * TERMS;
    grid_dependency_sync();
    if (i >= count) return;
    const X* const own = scales + (row * blocks + first / BLOCK) * (1 + ZEROS);
    const float scale = float(own[0]), zero = ZEROS ? float(own[1 * ZEROS]) : float(1 << (BITS - 1));
    Chunk found[TERMS / CHUNK];
#pragma unroll
    for (int q = 0; q < TERMS; ++q) {
        const int word = first / EACH + q / EACH, term = q % EACH;
        const int byte = term % 2 * 2 + term / 2 % 2, place = BITS == 8 ? term : byte * (8 / BITS) + term / 4;
        const unsigned integers = w[row * (bytes / 4) + word / 16 * 16 + word % 4 * 4 + word / 4 % 4];
        // The integer is inserted into the last bits of 2^23.
        const float integer = __uint_as_float(0x4b000000 | (integers >> place * BITS & MASK)) - 8388608.0f;
        found[q / CHUNK].at[q % CHUNK] = X(first + q < depth ? (integer - zero) * scale : 0.0f);
    }
#pragma unroll
    for (int q = 0; q < TERMS; q += CHUNK)
        if (first + q < ldb) *(Chunk*)(to + row * ldb + first + q) = found[q / CHUNK];
}
