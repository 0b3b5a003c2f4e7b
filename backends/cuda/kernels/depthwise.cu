// Depthwise convolution: every channel has filters of its own and nothing is summed over channels, so
// it is bound by memory. A thread computes VECTOR neighbouring channels of ROWS x COLUMNS neighbouring
// pixels in channels-last order, and reads each input once for all their windows (weights
// [kernel][channels]); or one pixel of one channel in plain order.
//
// Compile-time: KH KW; STEP_H STEP_W, the stride; ROWS COLUMNS, 1 where there is a dilation; VECTOR (4 or
// 1); CHANNELS_LAST; BIAS.

struct Plane {
    int channels, height, width, out_height, out_width;
    int dilation_h, dilation_w, pad_h, pad_w;
    int of_image, of_channel, of_row, of_column;  // distances of neighbours in the input
    int row;                                      // and of pixels in the result, channels last
};

struct Words {
    T at[VECTOR];
};

__device__ __forceinline__ Words words(const T* from)
{
    Words found;
    if constexpr (VECTOR == 4) {
        *(float4*)found.at = __ldg((const float4*)from);
    } else {
        found.at[0] = __ldg(from);
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(128)
depthwise(const T* x, const T* w, T* y, const T* bias, const T* z0, const T* z1, int count, Plane p)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= count) return;
    int rest = i, channel;
    const auto next = [&](int size) {  // the last of the places that are left, of so many
        const int whole = rest / size, found = rest - whole * size;
        rest = whole;
        return found;
    };
    if (CHANNELS_LAST) channel = next(p.channels / VECTOR) * VECTOR;
    const int column = next((p.out_width + COLUMNS - 1) / COLUMNS) * COLUMNS;
    const int row = next((p.out_height + ROWS - 1) / ROWS) * ROWS;
    if (!CHANNELS_LAST) channel = next(p.channels);
    const int n = rest;

    constexpr int DOWN = (ROWS - 1) * STEP_H + KH, ACROSS = (COLUMNS - 1) * STEP_W + KW;
    const T* image = x + (long long)n * p.of_image + channel * p.of_channel;
    T sums[ROWS][COLUMNS][VECTOR] = {};
#pragma unroll
    for (int j = 0; j < DOWN; ++j) {
        const int v = row * STEP_H - p.pad_h + j * p.dilation_h;
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            const int u = column * STEP_W - p.pad_w + k * p.dilation_w;
            Words values = {};
            if (v >= 0 && v < p.height && u >= 0 && u < p.width)
                values = words(image + v * p.of_row + u * p.of_column);
#pragma unroll
            for (int o = 0; o < ROWS; ++o)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    const int r = j - o * STEP_H, s = k - c * STEP_W;
                    if (r < 0 || r >= KH || s < 0 || s >= KW) continue;
                    const Words weights = words(w + (r * KW + s) * p.channels + channel);
#pragma unroll
                    for (int q = 0; q < VECTOR; ++q) sums[o][c][q] += values.at[q] * weights.at[q];
                }
        }
    }
#pragma unroll
    for (int o = 0; o < ROWS; ++o) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            if (row + o >= p.out_height || column + c >= p.out_width) continue;
            Words results;
            const int pixel = (n * p.out_height + row + o) * p.out_width + column + c;
            const int first = CHANNELS_LAST ? pixel * p.channels + channel : i;
#pragma unroll
            for (int q = 0; q < VECTOR; ++q) {
                const T sum = sums[o][c][q] + (BIAS ? bias[channel + q] : T(0));
                results.at[q] = finish(sum, first + q, n, channel + q, z0, z1);
            }
            T* to = y + (CHANNELS_LAST ? (long long)pixel * p.row + channel : i);
            if constexpr (VECTOR == 4) {
                *(float4*)to = *(const float4*)results.at;
            } else {
                *to = results.at[0];
            }
        }
    }
}
