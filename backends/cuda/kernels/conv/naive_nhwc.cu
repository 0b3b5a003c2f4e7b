// A beginner's convolution: one block per pixel, one thread per filter, images channels last, and the
// sum in global memory, which every term reads and writes.
//
// T is the element type. Compile-time: BIAS.

struct Plane {
    int channels, height, width;  // of the input
    int kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int pitch;                    // from the weights of one element of a window to the next
};

extern "C" __global__ void naive_nhwc(const T* x, const T* w, T* y, const T* bias, const T* z0,
                                      const T* z1, Plane p)
{
    const int filter = threadIdx.x, filters = blockDim.x;
    const int row = blockIdx.y, column = blockIdx.x, image = blockIdx.z;
    const long long pixel = ((long long)image * gridDim.y + row) * gridDim.x + column;
    volatile T* sum = y + pixel * filters + filter;
    *sum = BIAS ? bias[filter] : T(0);
    for (int a = 0; a < p.kernel_h; ++a)
        for (int b = 0; b < p.kernel_w; ++b) {
            const int u = row * p.stride_h - p.pad_h + a * p.dilation_h;
            const int v = column * p.stride_w - p.pad_w + b * p.dilation_w;
            if (u < 0 || u >= p.height || v < 0 || v >= p.width) continue;
            const long long from = (((long long)image * p.height + u) * p.width + v) * p.channels;
            const long long term = (a * p.kernel_w + b) * p.channels;
            for (int c = 0; c < p.channels; ++c)
                *sum = *sum + x[from + c] * w[(term + c) * p.pitch + filter];
        }
    *sum = epilogue(*sum, pixel * filters + filter, image, filter, z0, z1);
}
