// The k greatest (or least) elements of every line of [outer][size][inner], in order; of equal
// ones that with the lower index first; NaN is the greatest. A thread ranks one element: how many
// others come before it. T is the type of the elements.

template <typename E> __device__ __forceinline__ bool is_before(E a, E b)  // a before b, not equal
{
    const bool nan_a = a != a, nan_b = b != b;
    if (nan_a || nan_b) return nan_a != nan_b && nan_a == LARGEST;
    return LARGEST ? a > b : a < b;
}

extern "C" __global__ void __launch_bounds__(256)
top_k(const T* x, T* values, long long* places, long long count, int size, int k, int inner)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long row = i / inner, outer = row / size;
    const int own = row - outer * size;
    const T* line = x + outer * size * inner + i - row * inner;
    const A value = A(line[(long long)own * inner]);
    int rank = 0;
    for (int other = 0; other < size && rank < k; ++other) {
        const A rival = A(line[(long long)other * inner]);
        rank += is_before(rival, value) || (other < own && !is_before(value, rival));
    }
    if (rank >= k) return;
    const long long at = (outer * k + rank) * inner + i - row * inner;
    if (values) values[at] = line[(long long)own * inner];
    if (places) places[at] = own;
}
