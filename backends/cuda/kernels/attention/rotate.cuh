// Pairs of elements of a head, turned by the angle of its position. They are neighbours (INTERLEAVED) or lie `half`
// apart; what is behind them stays. A thread has VECTOR pairs, or as many elements of the rest.

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    return *(const Words*)from;
}

// Turns the pairs from `pair` on by the angles of a position. Positions that the tables do not have, `count` of them,
// have zeros for cosine and sine.
__device__ __forceinline__ void turn(const T* from, T* into, const T* cosine, const T* sine, long long position,
                                     int count, int pair, int half)
{
    if (pair >= half) {
        *(Words*)(into + half + pair) = words(from + half + pair);
        return;
    }
    const int first = INTERLEAVED ? 2 * pair : pair, second = INTERLEAVED ? first + VECTOR : first + half;
    const Words a = words(from + first), b = words(from + second);
    Words real = {}, imaginary = {};
    if (position >= 0 && position < count) {
        real = words(cosine + position * half + pair);
        imaginary = words(sine + position * half + pair);
    }
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
