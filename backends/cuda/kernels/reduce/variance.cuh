// The state of a variance: how many elements, their mean, and the sum of squares of differences from it. Merging two
// adds the term of the difference of their means (Chan, Golub and LeVeque: Algorithms for Computing the Sample Variance,
// 1983), so that no precision is lost where the mean is large.
#include "elementwise/functions.cuh"

__device__ __forceinline__ double quick_reciprocal(double x) { return 1.0 / x; }

struct alignas(16) Variance {
    A count, mean, square;
};
__device__ __forceinline__ Variance merged(Variance a, Variance b)
{
    const A count = a.count + b.count, apart = b.mean - a.mean;
    const A share = count > A(0) ? b.count * quick_reciprocal(count) : A(0);
    return {count, a.mean + apart * share, a.square + b.square + apart * apart * (a.count * share)};
}
