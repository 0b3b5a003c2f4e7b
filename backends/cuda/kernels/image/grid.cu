// GridSample and AffineGrid: sampling at a grid of coordinates, and such grids. T is the type of the elements, G
// that of the coordinates, A that of the arithmetic. Compile-time: AXES, 1 to 3; MODE; PADDING;
// ALIGN_CORNERS: whether -1 and 1 are the centres of the outermost elements, not their borders.

enum { NEAREST, LINEAR, CUBIC };
enum { ZEROS, BORDER, REFLECTION };

constexpr int TAPS = MODE == NEAREST ? 1 : MODE == LINEAR ? 2 : 4;

struct Sizes {
    int in[AXES], out[AXES];
};

// Reflects a position at both borders until it is between them.
__device__ __forceinline__ A reflected(A position, A low, A high)
{
    const A extent = high - low;
    if (extent == A(0)) return low;
    const A away = fmod(fabs(position - low), A(2) * extent);
    return low + (away > extent ? A(2) * extent - away : away);
}

__device__ __forceinline__ A weight(A distance)
{
    const A d = fabs(distance), a = A(-0.75);
    if (MODE == NEAREST) return A(1);
    if (MODE == LINEAR) return max(A(1) - d, A(0));
    if (d <= A(1)) return ((a + A(2)) * d - (a + A(3))) * d * d + A(1);
    return d < A(2) ? ((d - A(5)) * d + A(8)) * d * a - A(4) * a : A(0);
}

// Finds the neighbours of a coordinate along an axis: their indices (-1 for zeros) and weights.
__device__ __forceinline__ void neighbours(A coordinate, int size, int (&at)[TAPS], A (&by)[TAPS])
{
    const A low = ALIGN_CORNERS ? A(0) : A(-0.5);
    const A high = ALIGN_CORNERS ? A(size - 1) : A(size) - A(0.5);
    A position = ALIGN_CORNERS ? (coordinate + A(1)) / A(2) * A(size - 1)
                               : ((coordinate + A(1)) * A(size) - A(1)) / A(2);
    if (MODE == NEAREST) position = rint(position);
    if (PADDING == REFLECTION) position = reflected(position, low, high);
    else position = min(max(position, A(-3)), A(size + 2));
    const A left = floor(position);
    for (int k = 0; k < TAPS; ++k) {
        const A offset = A(MODE == CUBIC ? k - 1 : k);
        by[k] = weight(position - left - offset);
        A index = left + offset;
        if (PADDING == REFLECTION) index = reflected(index, low, high);
        const A place = min(max(index == index ? index : A(0), A(0)), A(size - 1));
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
        neighbours(A(coordinates[AXES - 1 - axis]), sizes.in[axis], at[axis], by[axis]);
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
