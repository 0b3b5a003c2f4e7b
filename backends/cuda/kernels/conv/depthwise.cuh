// Depthwise convolution, channels last: what its kernels share.
//
// Compile-time: T, and R of results; KD KH KW, of a window; STEP_D STEP_H STEP_W, the stride; VOLUME, whether images have
// planes; COLUMNS of a patch; VECTOR; BIAS; Z0 and Z1 as in multistage.cu.

using u32 = unsigned int;

#include "elementwise/divide.cuh"
#include "ptx/pdl.cuh"

struct Plane {
    int channels, height, width, out_height, out_width;
    int dilation_h, dilation_w, pad_h, pad_w;
    int row_x, row_y;           // elements from one pixel to the next
    int words, across, down;    // of a pixel; patches of an image
    Divisor by_words, by_across, by_down;
    int depth, out_depth, dilation_d, pad_d;
    Divisor by_depth;  // of the result
    int of_filters;    // from the filters of one image to those of the next; 0 if they share them
};

constexpr int ACROSS = (COLUMNS - 1) * STEP_W + KW;  // columns that windows of adjacent results cover

struct alignas(sizeof(T) * VECTOR) Words {
    u32 bits[sizeof(T) * VECTOR / 4];
};

struct alignas(sizeof(R) * VECTOR < 16 ? sizeof(R) * VECTOR : 16) Results {
    R at[VECTOR];
};

struct Floats {
    float at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    return *(const Words*)from;
}

// Returns its argument unchanged; hides from the compiler that it is, which would otherwise split words into
// halves at the load and insert zeros there.
__device__ __forceinline__ Words whole(Words words)
{
#pragma unroll
    for (u32& bits : words.bits) asm volatile("mov.b32 %0, %0;" : "+r"(bits));
    return words;
}

__device__ __forceinline__ Floats widened(const Words& from)
{
    Floats found;
    const T* at = (const T*)from.bits;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) found.at[q] = float(at[q]);
    return found;
}

template <int KIND_OF>
__device__ __forceinline__ Words operand(const T* z, long long at, int channel)
{
    if constexpr (KIND_OF == 0) return {};
    if constexpr (KIND_OF == 6) {
        Words found;
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) ((T*)found.bits)[q] = z[at];
        return found;
    }
    return words(KIND_OF == 2 ? z + channel : z + at);
}

// Stores epilogue(sums + shift), the result of a pixel.
__device__ __forceinline__ void keep(R* y, const Floats& sums, const Floats& shift, long long pixel,
                                     int n, int channel, const T* z0, const T* z1, const Plane& p)
{
    const long long at = pixel * p.row_y + channel;  // they are dense where an operand is read like the result
    const Words first = operand<Z0>(z0, Z0 >= 4 ? place0(at) : at, channel);
    const Words second = operand<Z1>(z1, Z1 >= 4 ? place1(at) : at, channel);
    Results results;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const float sum = BIAS ? sums.at[q] + shift.at[q] : sums.at[q];
        results.at[q] = epilogue(sum, q, n, q, (const T*)first.bits, (const T*)second.bits);
    }
    *(Results*)(y + pixel * p.row_y + channel) = results;
}

// Where thread `i` works: a word of channels, the first row and column of a patch, the plane among those of all results,
// the first plane of its windows, and the image.
struct Spot {
    int channel, column, row, plane, front, n;

    __device__ __forceinline__ Spot(int i, int rows, const Plane& p)
    {
        int rest = i;
        const auto next = [&](int size, const Divisor& by) {  // the last of the places that are left
            const int whole = divide(rest, by), found = rest - whole * size;
            rest = whole;
            return found;
        };
        channel = next(p.words, p.by_words) * VECTOR;
        column = next(p.across, p.by_across) * COLUMNS;
        row = next(p.down, p.by_down) * rows, plane = rest;
        front = VOLUME ? next(p.out_depth, p.by_depth) * STEP_D - p.pad_d : 0, n = rest;
    }
    // The plane of `x` in which windows begin, as if it existed, counted over all images.
    __device__ __forceinline__ long long first(const Plane& p) const
    {
        return VOLUME ? (long long)n * p.depth + front : n;
    }

    // Whether the image has the plane `d` behind that one.
    __device__ __forceinline__ bool has_plane(int d, const Plane& p) const
    {
        return !VOLUME || (u32)(front + d) < (u32)p.depth;
    }
};
