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

// Cosines and sines of VECTOR pairs.
struct Rotation {
    Words real, imaginary;
};

// Those of the pairs from `pair` on at a position: zeros outside of the tables, which have `count` positions, and for
// elements that are not rotated.
__device__ __forceinline__ Rotation rotation_at(const T* cosine, const T* sine, long long position, int count, int pair,
                                        int half)
{
    Rotation found = {};
    if (pair < half && position >= 0 && position < count) {
        found.real = words(cosine + position * half + pair);
        found.imaginary = words(sine + position * half + pair);
    }
    return found;
}

// The elements of VECTOR pairs, as they lie in memory, or as many others in `b`.
struct Pairs {
    Words a, b;
};

__device__ __forceinline__ int first_of(int pair) { return INTERLEAVED ? 2 * pair : pair; }
__device__ __forceinline__ int second_of(int pair, int half)
{
    return INTERLEAVED && pair < half ? 2 * pair + VECTOR : half + pair;
}

__device__ __forceinline__ Pairs pairs_at(const T* from, int pair, int half)
{
    Pairs found = {};
    if (pair < half) found.a = words(from + first_of(pair));
    found.b = words(from + second_of(pair, half));
    return found;
}

// Stores the pairs from `pair` on as they are.
__device__ __forceinline__ void keep_pairs(const Pairs& from, T* into, int pair, int half)
{
    if (pair < half) *(Words*)(into + first_of(pair)) = from.a;
    *(Words*)(into + second_of(pair, half)) = from.b;
}

// Stores the pairs from `pair` on, rotated.
__device__ __forceinline__ void rotate_pairs(const Pairs& from, T* into, const Rotation& by, int pair, int half)
{
    if (pair >= half) {
        *(Words*)(into + second_of(pair, half)) = from.b;
        return;
    }
    const Words a = from.a, b = from.b, real = by.real, imaginary = by.imaginary;
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
    *(Words*)(into + first_of(pair)) = u;
    *(Words*)(into + second_of(pair, half)) = v;
}
