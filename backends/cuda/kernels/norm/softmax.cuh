// What softmax.cu and softmax_rows.cu store, given the greatest element and the sum of exponentials.
__device__ __forceinline__ A result(A x, A peak, A sum)
{
    return LOGARITHM ? x - peak - log(sum) : exp(x - peak) / sum;
}
