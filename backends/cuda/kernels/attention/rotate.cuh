// Rotates pairs of elements of a head by the angle of its position. The elements of a pair are adjacent (INTERLEAVED)
// or `half` apart; the elements after the rotated ones are unchanged. A thread has VECTOR pairs, or as many of the
// others.

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    return *(const Words*)from;
}

// Rotates the pairs from `pair` on by the angles of a position. Positions outside of the tables, which have `count` of
// them, have zeros for cosine and sine.
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
        // Adjacent elements are stored in a and b one after the other.
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
