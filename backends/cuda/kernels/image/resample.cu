// The middle axis of [outer][size][inner] sampled at other places: a result is a weighted sum of
// TAPS elements, which tables name. One thread a result. FROM and TO are the types of elements and
// results, A the arithmetic, Index the type that counts elements. Compile-time: WEIGHTED, otherwise
// the one element is copied; WHOLE and LOWEST, GREATEST, where results are integers, which are
// truncated and limited; GAPS, where the innermost rows of x or y lie further apart than they are
// long.

__device__ __forceinline__ TO narrow(A sum)
{
    if (!WHOLE) return TO(sum);
    // What only a rounding error keeps from being an integer counts as one.
    return TO(min(max(trunc(sum * A(1 + 1e-9)), A(LOWEST)), A(GREATEST)));
}

struct Rows {
    int width, pitch;
    __device__ __forceinline__ Index operator()(Index element) const
    {
        return GAPS ? element / width * pitch + element % width : element;
    }
};

// An index of -1 stands for `outside`.
extern "C" __global__ void __launch_bounds__(256)
resample(const FROM* x, const int* indices, const A* weights, TO* y, Index count, int size,
         int places, int inner, A outside, Rows of_x, Rows of_y)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index row = i / inner, outer = row / places;
    const int place = row - outer * places;
    const Index line = outer * size * inner + i - row * inner;
    TO& result = y[of_y(i)];
    const int first = indices[place * TAPS];
    if (first < 0) {
        result = TO(outside);
    } else if (!WEIGHTED) {
        result = TO(x[of_x(line + (Index)first * inner)]);
    } else {
        A sum = 0;
#pragma unroll 4
        for (int k = 0; k < TAPS; ++k)
            sum += A(x[of_x(line + (Index)indices[place * TAPS + k] * inner)])
                   * weights[place * TAPS + k];
        result = narrow(sum);
    }
}
