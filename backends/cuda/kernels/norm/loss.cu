// Classification losses: log-probabilities [n][classes][inner] and targets [n][inner]. T is the type of
// the elements, I that of the targets, A that of the arithmetic.

#include "reduce/block.cuh"

struct Share {
    A loss, weight;
};

__device__ __forceinline__ Share share(const T* x, const I* targets, const T* weights, long long i,
                                       int classes, int inner, long long ignored)
{
    const long long target = targets[i];
    if ((IGNORES && target == ignored) || target < 0 || target >= classes) return {A(0), A(0)};
    const A weight = weights ? A(weights[target]) : A(1);
    return {-A(x[(i / inner * classes + target) * inner + i % inner]) * weight, weight};
}

extern "C" __global__ void __launch_bounds__(256)
losses(const T* x, const I* targets, const T* weights, T* y, long long count, int classes,
       int inner, long long ignored)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < count) y[i] = T(share(x, targets, weights, i, classes, inner, ignored).loss);
}

// The sum of all losses, or their weighted mean (MEAN). One block.
extern "C" __global__ void __launch_bounds__(THREADS)
total_loss(const T* x, const I* targets, const T* weights, T* y, long long count, int classes,
           int inner, long long ignored)
{
    A loss = 0, weight = 0;
    for (long long i = threadIdx.x; i < count; i += THREADS) {
        const Share own = share(x, targets, weights, i, classes, inner, ignored);
        loss += own.loss;
        weight += own.weight;
    }
    loss = over_block(loss, Plus());
    weight = over_block(weight, Plus());
    if (threadIdx.x == 0) *y = T(MEAN ? loss / weight : loss);
}
