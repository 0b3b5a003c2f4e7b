// Textbook implicit GEMM: a matrix product whose left matrix, the windows of the image as rows, is never
// stored; the image positions of its elements are computed on the fly. simt.cu does the same with a table
// of offsets and prefetching.
//
// The results fall into phases. A convolution has one. The results of a transposed convolution that are a
// stride apart have equal windows; within such a phase it is a convolution of stride 1.
//
// X and Y are the types of input and result, A that of the arithmetic. Compile-time: BIAS; PHASES, whether
// the phases are read from memory instead of the arguments.

constexpr int BM = 128, BN = 64, BK = 16;  // pixels, filters and terms of a block's step
constexpr int TM = 8, TN = 4;              // of a thread
constexpr int THREADS = BM / TM * (BN / TN);
constexpr int ROWS = BM * BK / THREADS;    // that a thread loads, BM / ROWS apart

struct Plane {
    int groups, channels, filters;   // the latter two of one group
    int pitch;                       // of the rows of weights
    int images, height, width;       // of the input
    int of_image, of_channel, of_row, of_column;  // strides of the input
    int to_image, to_channel, to_row, to_column;  // strides of the result
    int stride_h, stride_w;          // from window to window
    int dilation_h, dilation_w;      // from tap to tap; below 0 for a transposed convolution
    int step_h, step_w;              // from result to result of a phase
};

struct Phase {
    int first_h, first_w;    // its first result
    int count_h, count_w;    // how many it has
    int corner_h, corner_w;  // the input position of the first tap of the first result
    int taps_h, taps_w;
    int weights;             // row of the weights at which its taps begin
};

struct Pixel {
    long long start;  // of the window's first element
    int row, column;
};

extern "C" __global__ void __launch_bounds__(THREADS)
implicit_gemm(const X* x, const X* w, Y* y, const Y* bias, const Y* z0, const Y* z1,
              const Phase* phases, Plane p, Phase only)
{
    __shared__ __align__(16) A left[BK][BM + 4];
    __shared__ __align__(16) A right[BK][BN];
    const int group = blockIdx.z % p.groups;
    const Phase phase = PHASES ? phases[blockIdx.z / p.groups] : only;
    const int per_image = phase.count_h * phase.count_w, count = p.images * per_image;
    const int m0 = blockIdx.x * BM, n0 = blockIdx.y * BN;
    if (m0 >= count) return;
    const int terms = phase.taps_h * phase.taps_w * p.channels;
    x += (long long)group * p.channels * p.of_channel;
    w += ((long long)group + (long long)p.groups * phase.weights) * p.pitch;

    const int lane = threadIdx.x % BK, first = threadIdx.x / BK;
    Pixel pixels[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int m = m0 + first + i * (BM / ROWS);
        const int n = m / per_image, at = m % per_image;
        const int row = at / phase.count_w * p.stride_h + phase.corner_h;
        const int column = at % phase.count_w * p.stride_w + phase.corner_w;
        pixels[i] = {(long long)n * p.of_image + (long long)row * p.of_row
                         + (long long)column * p.of_column,
                     m < count ? row : -(1 << 20), column};
    }

    A sums[TM][TN] = {};
    const int row0 = threadIdx.x / (BN / TN) * TM, column0 = threadIdx.x % (BN / TN) * TN;
    for (int k0 = 0; k0 < terms; k0 += BK) {
        const int k = k0 + lane, tap = k / p.channels, channel = k - tap * p.channels;
        const int down = tap / max(phase.taps_w, 1) * p.dilation_h;
        const int right_by = tap % max(phase.taps_w, 1) * p.dilation_w;
        const long long offset = (long long)channel * p.of_channel + (long long)down * p.of_row
                                 + (long long)right_by * p.of_column;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const bool inside = k < terms && (unsigned)(pixels[i].row + down) < (unsigned)p.height
                                && (unsigned)(pixels[i].column + right_by) < (unsigned)p.width;
            left[lane][first + i * (BM / ROWS)] = inside ? A(x[pixels[i].start + offset]) : A(0);
        }
        for (int item = threadIdx.x; item < BK * BN; item += THREADS) {
            const int term = k0 + item / BN, n = n0 + item % BN;
            const bool inside = term < terms && n < p.pitch;
            right[item / BN][item % BN] =
                inside ? A(w[(long long)term * p.groups * p.pitch + n]) : A(0);
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < BK; ++q)
#pragma unroll
            for (int j = 0; j < TM; ++j)
#pragma unroll
                for (int i = 0; i < TN; ++i)
                    sums[j][i] += left[q][row0 + j] * right[q][column0 + i];
        __syncthreads();
    }

#pragma unroll
    for (int j = 0; j < TM; ++j) {
        const int m = m0 + row0 + j;
        if (m >= count) break;
        const int n = m / per_image, at = m % per_image;
        const long long place =
            (long long)n * p.to_image
            + (long long)(phase.first_h + at / phase.count_w * p.step_h) * p.to_row
            + (long long)(phase.first_w + at % phase.count_w * p.step_w) * p.to_column;
#pragma unroll
        for (int i = 0; i < TN; ++i) {
            if (n0 + column0 + i >= p.filters) break;
            const int channel = group * p.filters + n0 + column0 + i;
            const long long target = place + (long long)channel * p.to_channel;
            const A sum = sums[j][i] + (BIAS ? A(bias[channel]) : A(0));
            y[target] = epilogue(sum, target, n, channel, z0, z1);
        }
    }
}
