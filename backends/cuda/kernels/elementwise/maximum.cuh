// The maximum of two; NaN is greater than anything.
template <typename V> __device__ __forceinline__ V maximum(V a, V b)
{
    return b > a || b != b ? b : a;
}
