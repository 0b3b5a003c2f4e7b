// Local response normalization: y = x / (bias + alpha/size * s)^beta, s being the sum of the
// squares of `size` adjacent channels. One thread per result; the neighbours are read from the cache.

extern "C" __global__ void lrn(const T* x, T* y, long long count, int channels, int of_channel,
                               int before, int after, double alpha_by_size, double beta,
                               double bias)
{
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    const int channel = i / of_channel % channels;
    A sum = 0;
    for (int c = max(channel - before, 0); c <= min(channel + after, channels - 1); ++c) {
        const A value = A(x[i + (long long)(c - channel) * of_channel]);
        sum += value * value;
    }
    y[i] = T(A(x[i]) * pow(A(bias) + A(alpha_by_size) * sum, -A(beta)));
}
