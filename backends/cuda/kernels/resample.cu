// The middle axis of [outer][size][inner] sampled at other places: a result is a weighted sum of
// TAPS elements, which tables name. One thread a result. FROM and TO are the types of elements and
// results, A the arithmetic. Compile-time: WEIGHTED, otherwise the one element is copied; WHOLE and
// LOWEST, GREATEST, where results are integers, which are truncated and limited.

__device__ __forceinline__ TO narrow(A sum)
{
    if (!WHOLE) return TO(sum);
    // What only a rounding error keeps from being an integer counts as one.
    return TO(min(max(trunc(sum * A(1 + 1e-9)), A(LOWEST)), A(GREATEST)));
}

// An index of -1 stands for `outside`.
extern "C" __global__ void __launch_bounds__(256)
resample(const FROM* x, const int* indices, const A* weights, TO* y, long long count, int size,
         int places, int inner, A outside)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long row = i / inner, outer = row / places;
    const int place = row - outer * places;
    const FROM* line = x + outer * size * inner + i - row * inner;
    const int first = indices[place * TAPS];
    if (first < 0) {
        y[i] = TO(outside);
    } else if (!WEIGHTED) {
        y[i] = TO(line[(long long)first * inner]);
    } else {
        A sum = 0;
#pragma unroll 4
        for (int k = 0; k < TAPS; ++k)
            sum += A(line[(long long)indices[place * TAPS + k] * inner])
                   * weights[place * TAPS + k];
        y[i] = narrow(sum);
    }
}
