// GridSample and AffineGrid: sampling at a grid of coordinates, and such grids. T is the type of the elements, G
// that of the coordinates, P that of positions, A that of sums. Compile-time: AXES, 1 to 3; MODE; PADDING;
// ALIGN_CORNERS: whether -1 and 1 are the centres of the outermost elements, not their borders.

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

// x [n][channel][in], grid [n][out][AXES] (innermost axis first) -> y [n][channel][out]
extern "C" __global__ void __launch_bounds__(256)
grid_sample(const T* x, const G* grid, T* y, long long count, int channels, Sizes sizes)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    long long pixels = 1, elements = 1;
    for (int axis = 0; axis < AXES; ++axis) {
        pixels *= sizes.out[axis];
        elements *= sizes.in[axis];
    }
    const long long line = i / pixels, n = line / channels;
    const G* coordinates = grid + (n * pixels + i - line * pixels) * AXES;
    const T* image = x + line * elements;
    int at[AXES][TAPS];
    A by[AXES][TAPS];
    for (int axis = 0; axis < AXES; ++axis)
        neighbours(P(coordinates[AXES - 1 - axis]), sizes.in[axis], at[axis], by[axis]);
    int combinations = 1;
    for (int axis = 0; axis < AXES; ++axis) combinations *= TAPS;
    A sum = 0;
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
        if (inside) sum += A(image[place]) * share;
    }
    y[i] = T(sum);
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
