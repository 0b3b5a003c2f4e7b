// Convolution of every channel with its own past. The signal is the state, of kernel - 1 elements, followed by
// the input. One thread per result. T is the type of the elements, A that of the arithmetic.

__device__ __forceinline__ T signal(const T* x, const T* past, long long line, int at, int length,
                                    int carried)
{
    if (at >= carried) return x[line * length + at - carried];
    return past ? past[line * carried + at] : T(0.0f);
}

extern "C" __global__ void __launch_bounds__(256)
causal_conv(const T* x, const T* weight, const T* bias, const T* past, T* y, long long count,
            int channels, int length, int kernel)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long line = i / length;
    const int t = i - line * length, channel = line % channels;
    A sum = bias ? A(bias[channel]) : A(0);
    for (int j = 0; j < kernel; ++j)
        sum += A(signal(x, past, line, t + j, length, kernel - 1))
               * A(weight[(long long)channel * kernel + j]);
    y[i] = T(SILU ? sum / (A(1) + exp(-sum)) : sum);
}

// The last kernel - 1 elements of the signal.
extern "C" __global__ void __launch_bounds__(256)
causal_state(const T* x, const T* past, T* state, long long count, int length, int carried)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long line = i / carried;
    state[i] = signal(x, past, line, length + i - line * carried, length, carried);
}
