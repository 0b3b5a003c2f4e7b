// The state of a log-sum-exp reduction: the maximum so far, and the sum of exp(x - maximum).
struct Peak {
    A top, sum;
};
__device__ __forceinline__ A scale(A from, A to) { return from == to ? A(1) : exp(from - to); }
__device__ __forceinline__ Peak merged(Peak a, Peak b)
{
    const A top = a.top > b.top || a.top != a.top ? a.top : b.top;
    return {top, a.sum * scale(a.top, top) + b.sum * scale(b.top, top)};
}
