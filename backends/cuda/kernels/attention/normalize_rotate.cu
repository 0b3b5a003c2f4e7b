// Normalizes heads of queries and keys, or their rows as a whole, and rotates pairs of elements of every head by the
// angle of its position: what normalize_rows.cu and rotate.cu compute one after the other, without rounding in between.
// T is the type of elements, P of scales and shifts; both sides are counted in groups, each of which is normalized.
//
// Compile-time: WARPS of a group, or LANES threads of a warp, with GROUPS in a block; VECTOR, elements read at once;
// PER, such words of a thread; SIZE of a head and HALF of what is rotated of it; INTERLEAVED, whether pairs are adjacent
// or HALF apart, then the words of a pair are in threads whose numbers differ in one bit; CENTRED, SCALED and SHIFTED,
// whether the mean is subtracted, and whether there is a scale and a shift.

#include "reduce/block.cuh"
#include "ptx/pdl.cuh"

constexpr int OF_GROUP = WARPS > 1 ? THREADS : LANES;

template <typename V, int COUNT> struct alignas(sizeof(V) * COUNT < 16 ? sizeof(V) * COUNT : 16) Words {
    V at[COUNT];
};

struct Side {  // groups, and those of a row; elements of a group, and from one row to the next; positions in the tables
    int groups, of_row, count, row, places;
};

struct Sizes {  // positions of a sample, and samples that have their own
    int length, batches;
};

template <bool FIRST> __device__ __forceinline__ float over_group(float value)
{
    if constexpr (WARPS > 1) return over_block<FIRST>(value, Plus());
#pragma unroll
    for (int other = LANES / 2; other; other /= 2) value += __shfl_xor_sync(~0u, value, other);
    return value;
}

extern "C" __global__ void __launch_bounds__(OF_GROUP * GROUPS)
normalize_rotate(const T* q, const T* k, const P* scale_q, const P* scale_k, const P* shift_q, const P* shift_k,
                 const T* cosine_q, const T* cosine_k, const T* sine_q, const T* sine_k, const long long* positions,
                 T* to_q, T* to_k, Side of_q, Side of_k, Sizes sizes, int blocks, float epsilon)
{
    const bool second = blockIdx.x >= blocks;
    const Side side = second ? of_k : of_q;
    const T *x = second ? k : q, *cosine = second ? cosine_k : cosine_q, *sine = second ? sine_k : sine_q;
    const P *scale = second ? scale_k : scale_q, *shift = second ? shift_k : shift_q;
    const int lane = threadIdx.x % OF_GROUP, group = (blockIdx.x - (second ? blocks : 0)) * GROUPS + threadIdx.x / OF_GROUP;
    const int own = group < side.groups ? side.count : 0;  // without a group, a thread takes part in the sums of others
    const int row = group / side.of_row, head = group - row * side.of_row;
    const int sample = row / sizes.length, position = row - sample * sizes.length;
    T* y = (second ? to_k : to_q) + (long long)group * side.count;
    x += (long long)row * side.row + head * side.count;
    grid_dependency_sync();

    float values[PER][VECTOR], mean = 0, square = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_GROUP) * VECTOR;
        Words<T, VECTOR> words = {};
        if (at < own) words = *(const Words<T, VECTOR>*)(x + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) mean += values[i][e] = float(words.at[e]);
    }
    long long place = (long long)(sample % sizes.batches) * sizes.length + position;
    if (positions && own) place = positions[place];
    const bool known = place >= 0 && place < side.places;
    mean = CENTRED ? over_group<true>(mean) / side.count : 0.0f;
#pragma unroll
    for (int i = 0; i < PER; ++i)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            values[i][e] -= mean;
            if ((lane + i * OF_GROUP) * VECTOR < own) square += values[i][e] * values[i][e];
        }
    square = over_group<!CENTRED>(square);
    const float by = 1 / sqrtf(square / side.count + epsilon);
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = (lane + i * OF_GROUP) * VECTOR, element = at % SIZE;
        const bool rotated = at < own && element < 2 * HALF;
        Words<P, VECTOR> factors = {}, more = {};
        if (SCALED && at < own) factors = *(const Words<P, VECTOR>*)(scale + at);
        if (SHIFTED && at < own) more = *(const Words<P, VECTOR>*)(shift + at);
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) {
            values[i][e] *= by;
            if (SCALED) values[i][e] *= float(factors.at[e]);
            if (SHIFTED) values[i][e] += float(more.at[e]);
        }
        Words<T, VECTOR> words;
        if constexpr (INTERLEAVED) {
            Words<T, VECTOR / 2> real = {}, imaginary = {};
            if (rotated && known) {
                real = *(const Words<T, VECTOR / 2>*)(cosine + place * HALF + element / 2);
                imaginary = *(const Words<T, VECTOR / 2>*)(sine + place * HALF + element / 2);
            }
#pragma unroll
            for (int e = 0; e < VECTOR; e += 2) {
                const float c = float(real.at[e / 2]), s = float(imaginary.at[e / 2]), a = values[i][e], b = values[i][e + 1];
                words.at[e] = T(rotated ? c * a - s * b : a);
                words.at[e + 1] = T(rotated ? s * a + c * b : b);
            }
        } else {
            Words<T, VECTOR> real = {}, imaginary = {};
            const bool first = element < HALF;
            if (rotated && known) {
                real = *(const Words<T, VECTOR>*)(cosine + place * HALF + element - (first ? 0 : HALF));
                imaginary = *(const Words<T, VECTOR>*)(sine + place * HALF + element - (first ? 0 : HALF));
            }
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                const float other = __shfl_xor_sync(~0u, values[i][e], HALF / VECTOR);
                const float c = float(real.at[e]), s = float(imaginary.at[e]), value = values[i][e];
                words.at[e] = T(!rotated ? value : first ? c * value - s * other : c * value + s * other);
            }
        }
        if (at < own) *(Words<T, VECTOR>*)(y + at) = words;
    }
}
