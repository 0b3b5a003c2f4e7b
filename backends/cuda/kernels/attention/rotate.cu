// Rotates pairs of elements of every head by the angle of their position. Pairs are neighbours
// (INTERLEAVED) or lie `half` apart; what is behind them stays. A thread rotates VECTOR pairs, or moves
// as many elements. T is the type of the elements, A the arithmetic, Index counts what threads do.

#include "attention/steps.cuh"
#include "ptx/pdl.cuh"

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    return *(const Words*)from;
}

extern "C" __global__ void __launch_bounds__(256)
rotate(const T* x, const T* cosine, const T* sine, const long long* positions, T* y, Index count,
       int heads, int rows, int half, int chunks, int batches, Steps by, Steps to)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index line = i / chunks, group = line / rows;
    const int chunk = i - line * chunks, row = line - group * rows;
    const Index n = group / heads;
    const int head = group - n * heads, pair = chunk * VECTOR;
    const T* from = x + (long long)n * by.batch + head * by.head + row * by.row;
    T* into = y + (long long)n * to.batch + head * to.head + row * to.row;
    grid_dependency_sync();
    if (pair >= half) {
        *(Words*)(into + half + pair) = words(from + half + pair);
        return;
    }
    const long long own = (long long)(n % batches) * rows + row, place = positions ? positions[own] : own;
    const Words real = words(cosine + place * half + pair), imaginary = words(sine + place * half + pair);
    const int first = INTERLEAVED ? 2 * pair : pair, second = INTERLEAVED ? first + VECTOR : first + half;
    const Words a = words(from + first), b = words(from + second);
    Words u, v;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        // Neighbours lie in a and b one after the other.
        const int left = 2 * q, right = 2 * q + 1;
        const A s = INTERLEAVED ? A(left < VECTOR ? a.at[left % VECTOR] : b.at[left % VECTOR]) : A(a.at[q]);
        const A t = INTERLEAVED ? A(right < VECTOR ? a.at[right % VECTOR] : b.at[right % VECTOR]) : A(b.at[q]);
        const T one = T(A(real.at[q]) * s - A(imaginary.at[q]) * t);
        const T two = T(A(imaginary.at[q]) * s + A(real.at[q]) * t);
        if (INTERLEAVED) {
            (left < VECTOR ? u : v).at[left % VECTOR] = one;
            (right < VECTOR ? u : v).at[right % VECTOR] = two;
        } else {
            u.at[q] = one;
            v.at[q] = two;
        }
    }
    *(Words*)(into + first) = u;
    *(Words*)(into + second) = v;
}
