// The results of softmax.cu and softmax_rows.cu, given the maximum and the sum of exponentials.
__device__ __forceinline__ A result(A x, A peak, A sum)
{
    return LOGARITHM ? x - peak - log(sum) : exp(x - peak) / sum;
}
