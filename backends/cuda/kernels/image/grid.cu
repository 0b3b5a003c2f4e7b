// GridSample and AffineGrid: sampling at a grid of coordinates, and such grids. T is the type of the elements, G
// that of the coordinates, P that of positions, A that of sums. Compile-time: AXES, 1 to 3; MODE; PADDING;
// ALIGN_CORNERS: whether -1 and 1 are the centres of the outermost elements, not their borders; VECTOR, adjacent elements
// that a thread samples: channels of images that have them last, or 1.

enum { NEAREST, LINEAR, CUBIC };
enum { ZEROS, BORDER, REFLECTION };

constexpr int TAPS = MODE == NEAREST ? 1 : MODE == LINEAR ? 2 : 4;

struct Sizes {
    int in[AXES], out[AXES];
};

// Reflects a position at both borders until it is between them; gives the first border for NaN and infinities.
__device__ __forceinline__ P reflected(P position, P low, P high)
{
    const P extent = high - low;
    if (extent == P(0)) return low;
    const P away = fmod(fabs(position - low), P(2) * extent);
    return low + (away > extent ? P(2) * extent - away : max(away, P(0)));
}

__device__ __forceinline__ P weight(P distance)
{
    const P d = fabs(distance), a = P(-0.75);
    if (MODE == NEAREST) return P(1);
    if (MODE == LINEAR) return max(P(1) - d, P(0));
    if (d <= P(1)) return ((a + P(2)) * d - (a + P(3))) * d * d + P(1);
    return d < P(2) ? ((d - P(5)) * d + P(8)) * d * a - P(4) * a : P(0);
}

// Finds the neighbours of a coordinate along an axis: their indices (-1 for zeros) and weights. NaN is in front of it.
__device__ __forceinline__ void neighbours(P coordinate, int size, int (&at)[TAPS], A (&by)[TAPS])
{
    const P low = ALIGN_CORNERS ? P(0) : P(-0.5);
    const P high = ALIGN_CORNERS ? P(size - 1) : P(size) - P(0.5);
    P position = ALIGN_CORNERS ? (coordinate + P(1)) / P(2) * P(size - 1)
                               : ((coordinate + P(1)) * P(size) - P(1)) / P(2);
    if (MODE == NEAREST) position = rint(position);
    if (PADDING == REFLECTION) position = reflected(position, low, high);
    else position = min(max(position, P(-3)), P(size + 2));
    const P left = floor(position);
    for (int k = 0; k < TAPS; ++k) {
        const P offset = P(MODE == CUBIC ? k - 1 : k);
        by[k] = A(weight(position - left - offset));
        P index = left + offset;
        if (PADDING == REFLECTION) index = reflected(index, low, high);
        const P place = min(max(index, P(0)), P(size - 1));
        at[k] = PADDING == ZEROS && place != index ? -1 : int(place);
    }
}

struct alignas(VECTOR * sizeof(T)) Word {
    T at[VECTOR];
};

// Returns the samples of an image at coordinates (innermost axis first); its pixels are `step` elements apart.
__device__ __forceinline__ Word sampled(const T* image, const G* coordinates, const Sizes& sizes, int step)
{
    int at[AXES][TAPS];
    A by[AXES][TAPS];
    for (int axis = 0; axis < AXES; ++axis)
        neighbours(P(coordinates[AXES - 1 - axis]), sizes.in[axis], at[axis], by[axis]);
    int combinations = 1;
    for (int axis = 0; axis < AXES; ++axis) combinations *= TAPS;
    A sums[VECTOR] = {};
    for (int k = 0; k < combinations; ++k) {
        long long place = 0;
        A share = 1;
        bool inside = true;
        for (int axis = 0, rest = k; axis < AXES; ++axis, rest /= TAPS) {
            const int own = at[axis][rest % TAPS];
            place = place * sizes.in[axis] + own;
            share *= by[axis][rest % TAPS];
            inside = inside && own >= 0;
        }
        if (!inside) continue;
        const Word found = *(const Word*)(image + place * step);
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) sums[q] += A(found.at[q]) * share;
    }
    Word word;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) word.at[q] = T(sums[q]);
    return word;
}

__device__ __forceinline__ long long extent_of(const int (&sizes)[AXES])
{
    long long extent = 1;
    for (int axis = 0; axis < AXES; ++axis) extent *= sizes[axis];
    return extent;
}

// x [n][channel][in], grid [n][out][AXES] -> y [n][channel][out]; VECTOR is 1
extern "C" __global__ void __launch_bounds__(256)
grid_sample(const T* x, const G* grid, T* y, long long count, int channels, Sizes sizes)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long pixels = extent_of(sizes.out), line = i / pixels, n = line / channels;
    y[i] = sampled(x + line * extent_of(sizes.in), grid + (n * pixels + i - line * pixels) * AXES, sizes, 1).at[0];
}

// x [n][in][channel], grid [n][out][AXES] -> y [n][out][channel]; rows of channels may be further apart.
extern "C" __global__ void __launch_bounds__(256)
grid_sample_pixels(const T* x, const G* grid, T* y, long long count, int channels, int row_x, int row_y, Sizes sizes)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int words = channels / VECTOR;
    const long long pixel = i / words, n = pixel / extent_of(sizes.out);
    const int channel = int(i - pixel * words) * VECTOR;
    const T* image = x + n * extent_of(sizes.in) * row_x + channel;
    *(Word*)(y + pixel * row_y + channel) = sampled(image, grid + pixel * AXES, sizes, row_x);
}

// theta [n][AXES][AXES + 1] applied to (x, y, 1) of every pixel, x being the innermost axis.
extern "C" __global__ void __launch_bounds__(256)
affine_grid(const G* theta, G* y, long long count, Sizes sizes)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int row = i % AXES;
    long long rest = i / AXES;
    double point[AXES + 1];
    point[AXES] = 1;
    for (int axis = AXES - 1; axis >= 0; --axis) {
        const int size = sizes.out[axis], at = rest % size;
        rest /= size;
        point[AXES - 1 - axis] = !ALIGN_CORNERS ? (2.0 * at + 1.0) / size - 1.0
                                 : size > 1 ? 2.0 * at / (size - 1) - 1.0 : 0.0;
    }
    const G* by = theta + (rest * AXES + row) * (AXES + 1);
    double sum = 0;
    for (int k = 0; k <= AXES; ++k) sum += double(A(by[k])) * point[k];
    y[i] = G(sum);
}
