// Pooling of regions of images: one thread per result [region][channel][row][column]. T is the type
// of the elements, A that of the arithmetic. Regions of an image that there is not give 0.

struct Region {
    int images, channels, height, width, rows, columns;
};

// Samples of a cell; where there are more, its region is no box of an image, and the result is NaN.
constexpr A MOST = A(1 << 20);

__device__ __forceinline__ A greater(A a, A b) { return a > b || a != a ? a : b; }  // NaN stays

struct Sample {  // both neighbours of a position along an axis, and their weights
    int at[2];
    A weight[2];
};

// Positions more than one element outside have weight zero, others are clamped to the border.
__device__ __forceinline__ Sample sample(A position, int size)
{
    const bool near = position >= A(-1) && position <= A(size);
    position = min(max(position, A(0)), A(size - 1));
    const int low = int(position), high = min(low + 1, size - 1);
    const A share = position - A(low);
    return {{low, high}, {near ? A(1) - share : A(0), near ? share : A(0)}};
}

// Region r is [x1, y1, x2, y2] of image images[r]. The maximum is over the samples' weighted
// neighbours.
extern "C" __global__ void __launch_bounds__(256)
roi_align(const T* x, const T* rois, const long long* images, T* y, long long count, Region g,
          int ratio, double scale)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int column = i % g.columns, row = i / g.columns % g.rows;
    const int channel = i / g.columns / g.rows % g.channels;
    const long long region = i / g.columns / g.rows / g.channels;
    const long long image_at = images[region];
    if (image_at < 0 || image_at >= g.images) {
        y[i] = T(A(0));
        return;
    }
    const T* image = x + (image_at * g.channels + channel) * g.height * g.width;
    const T* box = rois + 4 * region;
    const A shift = HALF_PIXEL ? A(0.5) : A(0);
    const A left = A(box[0]) * A(scale) - shift, top = A(box[1]) * A(scale) - shift;
    A width = A(box[2]) * A(scale) - shift - left, height = A(box[3]) * A(scale) - shift - top;
    if (!HALF_PIXEL) {
        width = max(width, A(1));
        height = max(height, A(1));
    }
    const A cell_h = height / A(g.rows), cell_w = width / A(g.columns);
    const bool is_box = cell_h < MOST && cell_w < MOST && max(cell_h, A(1)) * max(cell_w, A(1)) < MOST;
    if (!ratio && !is_box) {
        y[i] = T(A(NAN));
        return;
    }
    const int count_h = ratio ? ratio : max(0, int(ceil(cell_h)));
    const int count_w = ratio ? ratio : max(0, int(ceil(cell_w)));
    A result = MAXIMUM ? -A(INFINITY) : A(0);
    for (int a = 0; a < count_h; ++a) {
        const Sample v = sample(top + (A(row) + (A(a) + A(0.5)) / A(count_h)) * cell_h, g.height);
        for (int b = 0; b < count_w; ++b) {
            const Sample u = sample(left + (A(column) + (A(b) + A(0.5)) / A(count_w)) * cell_w,
                                    g.width);
            for (int p = 0; p < 2; ++p)
                for (int q = 0; q < 2; ++q) {
                    const A part = A(image[(long long)v.at[p] * g.width + u.at[q]])
                                   * (v.weight[p] * u.weight[q]);
                    result = MAXIMUM ? greater(result, part) : result + part;
                }
        }
    }
    const int samples = count_h * count_w;
    y[i] = T(samples == 0 ? A(0) : MAXIMUM ? result : result / A(samples));
}

// The greatest element of a cell of region [image, x1, y1, x2, y2]; 0 if it has none.
extern "C" __global__ void __launch_bounds__(256)
max_roi_pool(const T* x, const T* rois, T* y, long long count, Region g, double scale)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const int column = i % g.columns, row = i / g.columns % g.rows;
    const int channel = i / g.columns / g.rows % g.channels;
    const T* box = rois + 5 * (i / g.columns / g.rows / g.channels);
    const A image_at = A(box[0]);
    if (!(image_at > A(-1) && image_at < A(g.images))) {
        y[i] = T(A(0));
        return;
    }
    const T* image = x + ((long long)image_at * g.channels + channel) * g.height * g.width;
    int corner[4];
    for (int k = 0; k < 4; ++k) corner[k] = int(floor(A(box[k + 1]) * A(scale) + A(0.5)));
    const int width = max(corner[2] - corner[0] + 1, 1), height = max(corner[3] - corner[1] + 1, 1);
    const int top = corner[1] + row * height / g.rows;
    const int bottom = corner[1] + ((row + 1) * height + g.rows - 1) / g.rows;
    const int left = corner[0] + column * width / g.columns;
    const int right = corner[0] + ((column + 1) * width + g.columns - 1) / g.columns;
    A result = -A(INFINITY);
    for (int v = max(top, 0); v < min(bottom, g.height); ++v)
        for (int u = max(left, 0); u < min(right, g.width); ++u)
            result = greater(result, A(image[(long long)v * g.width + u]));
    y[i] = T(result == -A(INFINITY) ? A(0) : result);
}
