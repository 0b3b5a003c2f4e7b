// Normalizations by statistics of the elements themselves: one block computes one group of them,
// three times over memory that then lies in the cache. X, S and Y are the types of elements, of
// scale and shift, and of results; O that of the statistics that are given out; A the arithmetic.
//
// Compile-time: KIND, what the elements are divided by; CENTRED, whether the mean is subtracted;
// RUNNING, whether the statistics go out as running averages; WARPS of a block.

#include "block.cuh"

enum { DEVIATION, DEVIATION_PLUS, SUM, ROOT };

struct Walk {  // where the i-th element lies, or the i-th group begins
    long long inner, outer_step, inner_step;
    __device__ __forceinline__ long long operator()(long long i) const
    {
        return i / inner * outer_step + i % inner * inner_step;
    }
};

// scale and shift (either may be null) have `parameters` elements, each for `repeat` neighbours.
extern "C" __global__ void __launch_bounds__(THREADS)
standardize(const X* x, const S* scale, const S* shift, Y* y, O* mean_out, O* deviation_out,
            const O* mean_in, const O* variance_in, long long count, long long parameters,
            long long repeat, double epsilon, double momentum, Walk groups, Walk elements)
{
    const long long first = groups(blockIdx.x);
    A mean = 0, sum = 0;
    if (CENTRED) {
        for (long long i = threadIdx.x; i < count; i += THREADS) mean += A(x[first + elements(i)]);
        mean = over_block(mean, Plus()) / A(count);
    }
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        const A value = A(x[first + elements(i)]) - mean;
        sum += KIND == SUM ? fabs(value) : value * value;
    }
    sum = over_block(sum, Plus());
    const A variance = sum / A(count);
    const A by = KIND == DEVIATION        ? A(1) / sqrt(variance + A(epsilon))
                 : KIND == DEVIATION_PLUS ? A(1) / (sqrt(variance) + A(epsilon))
                 : sum == A(0)            ? A(0)
                 : KIND == SUM            ? A(1) / sum
                                          : A(1) / sqrt(sum);
    if (y)
        for (long long i = threadIdx.x; i < count; i += THREADS) {
            const long long at = first + elements(i), own = at / repeat % parameters;
            A value = (A(x[at]) - mean) * by;
            if (scale) value *= A(scale[own]);
            if (shift) value += A(shift[own]);
            y[at] = Y(value);
        }
    if (threadIdx.x) return;
    const long long group = blockIdx.x;
    const A kept = RUNNING ? A(momentum) : A(0), rest = A(1) - kept;
    if (mean_out) mean_out[group] = O(mean * rest + (RUNNING ? A(mean_in[group]) * kept : A(0)));
    if (deviation_out)
        deviation_out[group] = O(RUNNING ? variance * rest + A(variance_in[group]) * kept : by);
}
