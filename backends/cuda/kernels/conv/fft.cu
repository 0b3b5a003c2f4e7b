// Convolution by Fourier transforms of SIZE x SIZE tiles (overlap-save): the transforms before and after a
// batch of matrix products, one for every frequency. A real tile has SIZE * BINS different frequencies.
//
// Spectra are stored as [frequency][tile][real parts of all channels, imaginary parts of all channels].
// A block transforms CHANNELS channels of one tile, first the rows, one per thread, then the columns.
//
// Compile-time: SIZE, a power of two; CHANNELS; BIAS. `twiddles` are the roots of unity
// exp(-2 pi i k / SIZE), SIZE / 2 of them.

constexpr int BINS = SIZE / 2 + 1;
constexpr int THREADS = SIZE * CHANNELS;
constexpr int PITCH = SIZE * CHANNELS + CHANNELS;  // of one column in shared memory

struct Plane {
    int channels;                     // of this end
    int height, width;                // of the image of this end
    int tiles, tiles_h, tiles_w;
    int valid_h, valid_w;             // results that a tile gives, before strides
    int stride_h, stride_w, pad_h, pad_w;
    int of_image, of_channel, of_row, of_column;  // strides of the image of this end
};

struct Complex {
    float re, im;
};

__device__ __forceinline__ constexpr int reversed(int i)
{
    int found = 0;
    for (int bit = 1; bit < SIZE; bit *= 2, i /= 2) found = found * 2 + i % 2;
    return found;
}

// Transforms `z` in place; its input is in bit-reversed order. SIGN is 1 for the forward transform, -1 for the inverse.
template <int SIGN>
__device__ __forceinline__ void transform(Complex (&z)[SIZE])
{
#pragma unroll
    for (int half = 1; half < SIZE; half *= 2)
#pragma unroll
        for (int i = 0; i < SIZE / 2; ++i) {
            const int k = i % half, at = i / half * half * 2 + k;
            const float2 root = twiddles[k * (SIZE / 2 / half)];
            const float re = root.x, im = SIGN * root.y;
            const Complex a = z[at], b = z[at + half];
            const Complex c = {b.re * re - b.im * im, b.re * im + b.im * re};
            z[at] = {a.re + c.re, a.im + c.im};
            z[at + half] = {a.re - c.re, a.im - c.im};
        }
}

struct Corner {  // where a tile begins, in windows of stride 1
    int image, row, column;

    __device__ __forceinline__ Corner(int tile, const Plane& p)
    {
        column = tile % p.tiles_w * p.valid_w;
        row = tile / p.tiles_w % p.tiles_h * p.valid_h;
        image = tile / p.tiles_w / p.tiles_h;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
fft_inputs(const float* x, float* spectra, Plane p)
{
    extern __shared__ __align__(16) Complex columns[];
    const int lane = threadIdx.x % CHANNELS, line = threadIdx.x / CHANNELS;
    const int channel = blockIdx.y * CHANNELS + lane;
    const Corner corner(blockIdx.x, p);
    const int row = corner.row - p.pad_h + line, column = corner.column - p.pad_w;
    Complex z[SIZE];
    const bool there = channel < p.channels && (unsigned)row < (unsigned)p.height;
    const float* from = x + (long long)corner.image * p.of_image + (long long)row * p.of_row
                        + (long long)channel * p.of_channel;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const int at = column + i;
        const bool inside = there && (unsigned)at < (unsigned)p.width;
        z[reversed(i)] = {inside ? from[(long long)at * p.of_column] : 0.0f, 0.0f};
    }
    transform<1>(z);
#pragma unroll
    for (int bin = 0; bin < BINS; ++bin) columns[bin * PITCH + line * CHANNELS + lane] = z[bin];
    __syncthreads();
    if (line >= BINS || channel >= p.channels) return;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) z[reversed(i)] = columns[line * PITCH + i * CHANNELS + lane];
    transform<1>(z);
    float* to = spectra + ((long long)line * p.tiles + blockIdx.x) * 2 * p.channels + channel;
    const long long step = (long long)BINS * p.tiles * 2 * p.channels;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        to[i * step] = z[i].re;
        to[i * step + p.channels] = z[i].im;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fft_results(const float* spectra, float* y, const float* bias, const float* z0, const float* z1,
            Plane p)
{
    extern __shared__ __align__(16) Complex columns[];
    const int lane = threadIdx.x % CHANNELS, line = threadIdx.x / CHANNELS;
    const int channel = blockIdx.y * CHANNELS + lane;
    Complex z[SIZE];
    if (line < BINS && channel < p.channels) {
        const float* from = spectra + ((long long)line * p.tiles + blockIdx.x) * 2 * p.channels
                            + channel;
        const long long step = (long long)BINS * p.tiles * 2 * p.channels;
#pragma unroll
        for (int i = 0; i < SIZE; ++i)
            z[reversed(i)] = {from[i * step], from[i * step + p.channels]};
        transform<-1>(z);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) columns[line * PITCH + i * CHANNELS + lane] = z[i];
    }
    __syncthreads();
    const Corner corner(blockIdx.x, p);
    const int row = corner.row + line;
    if (channel >= p.channels || line >= p.valid_h || row % p.stride_h) return;
    if (row / p.stride_h >= p.height) return;
#pragma unroll
    for (int bin = 0; bin < BINS; ++bin) {
        const Complex one = columns[bin * PITCH + line * CHANNELS + lane];
        z[reversed(bin)] = one;
        if (bin > 0 && bin < SIZE / 2) z[reversed(SIZE - bin)] = {one.re, -one.im};
    }
    transform<-1>(z);
    const float shift = BIAS ? bias[channel] : 0.0f;
    const long long start = (long long)corner.image * p.of_image
                            + (long long)(row / p.stride_h) * p.of_row
                            + (long long)channel * p.of_channel;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        const int column = corner.column + i;
        if (i >= p.valid_w || column % p.stride_w || column / p.stride_w >= p.width) continue;
        const long long at = start + (long long)(column / p.stride_w) * p.of_column;
        const float sum = z[i].re / (SIZE * SIZE) + shift;
        y[at] = epilogue(sum, at, corner.image, channel, z0, z1);
    }
}
