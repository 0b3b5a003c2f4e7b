// im2col: writes the windows of an image as rows of a matrix, columns[pixel][tap][channel], with zeros
// for positions outside of the image. A matrix product completes the convolution (explicit GEMM).
//
// And its counterpart for transposed convolutions, col2im: the product of pixels and weights yields
// columns[input pixel][tap][filter], from which every result gathers its terms.
//
// T is the type of elements, C that of col2im's columns, R that of its results, A that of the arithmetic, Index
// that of element indices.
// Compile-time: BIAS; VECTOR, elements per copy: 4, or 1 where they are not adjacent.

struct alignas(VECTOR * sizeof(T)) Word {
    T at[VECTOR];
};

struct Plane {
    int channels, height, width;                  // of the input
    int out_height, out_width;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int of_image, of_channel, of_row, of_column;  // strides of the image
};

// A thread copies VECTOR adjacent channels; `words` is the number of such groups in a row.
extern "C" __global__ void im2col(const T* x, T* columns, Index count, int words, Plane p)
{
    const Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int word = i % words, groups = p.channels / VECTOR;
    const Index pixel = i / words;
    const int channel = word % groups * VECTOR, tap = word / groups;
    const int column = pixel % p.out_width, row = pixel / p.out_width % p.out_height;
    const int u = row * p.stride_h - p.pad_h + tap / p.kernel_w * p.dilation_h;
    const int v = column * p.stride_w - p.pad_w + tap % p.kernel_w * p.dilation_w;
    const bool inside = (unsigned)u < (unsigned)p.height && (unsigned)v < (unsigned)p.width;
    const long long image = pixel / (p.out_height * p.out_width) * (long long)p.of_image;
    const T* from = x + image + (long long)u * p.of_row + (long long)v * p.of_column
                    + (long long)channel * p.of_channel;
    *(Word*)(columns + (long long)i * VECTOR) = inside ? *(const Word*)from : Word{};
}

// Here the image of struct Plane is the result, and out_height, out_width are those of the input.
extern "C" __global__ void col2im(const C* columns, R* y, const T* bias, const T* z0, const T* z1,
                                  Index count, int pitch, Plane p)
{
    const Index i = blockIdx.x * (Index)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int channel = i % p.channels;
    const Index pixel = i / p.channels;
    const int column = pixel % p.width, row = pixel / p.width % p.height;
    const long long image = pixel / (p.height * p.width);
    A sum = BIAS ? A(bias[channel]) : A(0);
    // Without dilation, every stride-th tap corresponds to a pixel of the input.
    const bool dense_h = p.dilation_h == 1, dense_w = p.dilation_w == 1;
    const int first_h = dense_h ? (row + p.pad_h) % p.stride_h : 0, step_h = dense_h ? p.stride_h : 1;
    const int first_w = dense_w ? (column + p.pad_w) % p.stride_w : 0, step_w = dense_w ? p.stride_w : 1;
    for (int a = first_h; a < p.kernel_h; a += step_h)
        for (int b = first_w; b < p.kernel_w; b += step_w) {
            const int u = row + p.pad_h - a * p.dilation_h;
            const int v = column + p.pad_w - b * p.dilation_w;
            if (u < 0 || v < 0 || u % p.stride_h || v % p.stride_w) continue;
            const int at_h = u / p.stride_h, at_w = v / p.stride_w;
            if (at_h >= p.out_height || at_w >= p.out_width) continue;
            const long long from = (image * p.out_height + at_h) * p.out_width + at_w;
            sum += A(columns[from * pitch + (a * p.kernel_w + b) * p.channels + channel]);
        }
    const long long at = image * p.of_image + (long long)row * p.of_row
                         + (long long)column * p.of_column + (long long)channel * p.of_channel;
    y[at] = epilogue(sum, at, (int)image, channel, z0, z1);
}
