// Discrete Fourier transforms of lines in shared memory, one block per line: Stockham's algorithm, whose steps multiply the
// length of transforms by a factor of LENGTH each and leave results in order. Signals are lines of `size` numbers of PARTS
// parts (1: real, 2: complex), truncated or zero-padded to LENGTH.
//
// Types: T, of elements, and A, of the arithmetic. Compile-time: LENGTH; THREADS; INVERSE; HALF, whether the signal is the
// first half of a symmetric one (an inverse transform with real results); OUT_PARTS; WINDOWED, whether elements are multiplied
// by `window`. Generated: STEPS(X), which is X(factor, length so far) of each step.

#include "ptx/pdl.cuh"

struct Lines {  // the offset of line (outer, frame, inner), and the stride of its numbers
    long long frames, inner, of_outer, of_frame, of_inner, step;
};

struct Complex {
    A real, imaginary;
};

__device__ __forceinline__ void add_product(Complex& sum, const Complex& a, const Complex& b)
{
    sum.real += a.real * b.real - a.imaginary * b.imaginary;
    sum.imaginary += a.real * b.imaginary + a.imaginary * b.real;
}

__device__ __forceinline__ Complex operator+(const Complex& a, const Complex& b)
{
    return {a.real + b.real, a.imaginary + b.imaginary};
}

__device__ __forceinline__ Complex operator-(const Complex& a, const Complex& b)
{
    return {a.real - b.real, a.imaginary - b.imaginary};
}

// Returns the product with the fourth root of unity: -i, or i in an inverse transform.
__device__ __forceinline__ Complex quarter(const Complex& a)
{
    return INVERSE ? Complex{-a.imaginary, a.real} : Complex{a.imaginary, -a.real};
}

// Transforms P numbers; `own` are the roots of unity of that order.
template <int P> __device__ __forceinline__ void transform(const Complex (&x)[P], const Complex (&own)[P], Complex (&y)[P])
{
    if constexpr (P == 2) {
        y[0] = x[0] + x[1], y[1] = x[0] - x[1];
    } else if constexpr (P == 4) {
        const Complex a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = quarter(x[1] - x[3]);
        y[0] = a + c, y[1] = b + d, y[2] = a - c, y[3] = b - d;
    } else {
#pragma unroll
        for (int q = 0; q < P; ++q) {
            y[q] = x[0];
#pragma unroll
            for (int s = 1; s < P; ++s) add_product(y[q], x[s], own[s * q % P]);
        }
    }
}

// Combines P transforms of L numbers each; `roots` are those of unity. A thread computes the P results of as many numbers, or,
// where they are too many for its registers, a result at a time.
template <int P, int L> __device__ __forceinline__ void combine(const Complex* from, Complex* to, const Complex* roots)
{
    constexpr int APART = LENGTH / P;
    __syncthreads();
    if constexpr (P <= 8) {
        Complex own[P];
#pragma unroll
        for (int s = 0; s < P; ++s) own[s] = roots[s * APART];
        for (int i = threadIdx.x; i < APART; i += THREADS) {
            const int j = i % L;
            Complex rotated[P], found[P];
            rotated[0] = from[i];
#pragma unroll
            for (int s = 1; s < P; ++s) {
                if constexpr (L == 1) {
                    rotated[s] = from[i + s * APART];
                } else {
                    rotated[s] = {};
                    add_product(rotated[s], from[i + s * APART], roots[s * j * (APART / L)]);
                }
            }
            transform<P>(rotated, own, found);
#pragma unroll
            for (int q = 0; q < P; ++q) to[(i - j) * P + j + q * L] = found[q];
        }
    } else {
        for (int e = threadIdx.x; e < LENGTH; e += THREADS) {
            const int q = e / APART, i = e % APART, j = i % L, step = (j + q * L) * (APART / L);
            Complex sum = from[i];
            int at = 0;
            for (int s = 1; s < P; ++s) {
                at += step;
                if (at >= LENGTH) at -= LENGTH;
                add_product(sum, from[i + s * APART], roots[at]);
            }
            to[(i - j) * P + j + q * L] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fft(const T* x, const T* window, const A* unity, T* y, int size, int coefficients, Lines l)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Complex *from = (Complex*)shared, *to = from + LENGTH, *const roots = to + LENGTH;
    const unsigned inner = l.inner, frames = l.frames;  // no more than blocks
    const long long in = blockIdx.x % inner, line = blockIdx.x / inner;
    const long long frame = unsigned(line) % frames, outer = unsigned(line) / frames;
    x += outer * l.of_outer + frame * l.of_frame + in * l.of_inner;
    y += (line * coefficients * l.inner + in) * OUT_PARTS;
    for (int j = threadIdx.x; j < LENGTH; j += THREADS)
        roots[j] = {unity[2 * j], INVERSE ? -unity[2 * j + 1] : unity[2 * j + 1]};
    grid_dependency_sync();
    for (int j = threadIdx.x; j < LENGTH; j += THREADS) {
        const int at = HALF && j > LENGTH / 2 ? LENGTH - j : j;
        Complex value = {};
        if (at < size) {
            value.real = A(x[at * l.step]);
            if (PARTS == 2) value.imaginary = at == j ? A(x[at * l.step + PARTS - 1]) : -A(x[at * l.step + PARTS - 1]);
            if (WINDOWED) value.real *= A(window[j]), value.imaginary *= A(window[j]);
        }
        from[j] = value;
    }
#define STEP(P, L) \
    { \
        combine<P, L>(from, to, roots); \
        Complex* const other = from; \
        from = to, to = other; \
    }
    STEPS(STEP)
    __syncthreads();
    constexpr A BY = INVERSE ? A(1) / LENGTH : A(1);
    for (int k = threadIdx.x; k < coefficients; k += THREADS) {
        T* const found = y + k * l.inner * OUT_PARTS;
        found[0] = T(from[k].real * BY);
        if (OUT_PARTS == 2) found[1] = T(from[k].imaginary * BY);
    }
}
