// Deformable convolution: taps are displaced by offsets. A thread computes one result and reads by bilinear
// interpolation; positions outside of the image are zeros. T is the type of the elements, A that of the
// arithmetic; Spatial axes are rows and columns.

struct Plane {
    int channels, height, width, filters, out_height, out_width, kernel_h, kernel_w, stride_h,
        stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, offset_groups;
};

__device__ __forceinline__ A pixel(const T* image, int row, int column, const Plane& p)
{
    const bool inside = row >= 0 && row < p.height && column >= 0 && column < p.width;
    return inside ? A(image[(long long)row * p.width + column]) : A(0);
}

__device__ __forceinline__ A sample(const T* image, A row, A column, const Plane& p)
{
    const A top = floor(row), left = floor(column), v = row - top, u = column - left;
    const int i = int(top), j = int(left);
    return (pixel(image, i, j, p) * (A(1) - u) + pixel(image, i, j + 1, p) * u) * (A(1) - v)
           + (pixel(image, i + 1, j, p) * (A(1) - u) + pixel(image, i + 1, j + 1, p) * u) * v;
}

extern "C" __global__ void __launch_bounds__(256)
deform_conv(const T* x, const T* w, const T* offset, const T* bias, const T* mask, T* y,
            long long count, Plane p)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int column = i % p.out_width, row = i / p.out_width % p.out_height;
    const long long pixels = (long long)p.out_height * p.out_width;
    const int filter = i / pixels % p.filters;
    const long long n = i / pixels / p.filters, place = (long long)row * p.out_width + column;
    const int per_group = p.channels / p.groups, per_offset = p.channels / p.offset_groups;
    const int taps = p.kernel_h * p.kernel_w;
    const int first = filter / (p.filters / p.groups) * per_group;
    A sum = bias ? A(bias[filter]) : A(0);
    for (int c = 0; c < per_group; ++c) {
        const int channel = first + c;
        const T* image = x + (n * p.channels + channel) * p.height * p.width;
        const long long moved = n * p.offset_groups + channel / per_offset;
        for (int tap = 0; tap < taps; ++tap) {
            const T* by = offset + (moved * taps + tap) * 2 * pixels + place;
            const A v = A(row * p.stride_h - p.pad_h + tap / p.kernel_w * p.dilation_h) + A(by[0]);
            const A u = A(column * p.stride_w - p.pad_w + tap % p.kernel_w * p.dilation_w)
                        + A(by[pixels]);
            const A share = mask ? A(mask[(moved * taps + tap) * pixels + place]) : A(1);
            sum += sample(image, v, u, p) * share
                   * A(w[((long long)filter * per_group + c) * taps + tap]);
        }
    }
    y[i] = T(sum);
}
