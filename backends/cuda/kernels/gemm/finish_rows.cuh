// How products of few rows end: the sums of all warps are added up, and the epilogue is applied.
//
// Compile-time, besides the constants of gemv.cuh: EDGE, whether blocks extend past the last row of weights; Z0 and Z1,
// the layouts of the epilogue's operands; see epilogue.cuh.

// What the epilogue reads for a result: biases, and an element of each operand.
struct Beside {
    Y bias[PRODUCTS], z[2];
};

// Where they are, if the result is `inside`, and which products have a bias. Not by null addresses: NVRTC 13.0 may test
// the zero that it has not yet written.
struct BesidePlaces {
    const Y *bias[PRODUCTS], *z[2];
    bool biased[PRODUCTS], inside;

    __device__ __forceinline__ Beside read() const
    {
        Beside found = {};
        if (!inside) return found;
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
            if (BIAS && biased[p]) found.bias[p] = *bias[p];
        if constexpr (Z0) found.z[0] = *z[0];
        if constexpr (Z1) found.z[1] = *z[1];
        return found;
    }
};

// Where the element of an operand of layout KIND_OF is, for a result that is at `at` in one.
template <int KIND_OF> __device__ __forceinline__ const Y* place_in(const Y* z, long long at, int m, int column)
{
    if constexpr (KIND_OF == 0) return nullptr;
    else return z + (KIND_OF == 2 ? column : KIND_OF == 3 ? m : at);
}

// Returns the places for result `i` of a block.
__device__ __forceinline__ BesidePlaces places_beside(unsigned i, const Y* bias0, const Y* bias1, const Y* z0, const Y* z1,
                                                      int n0, int n)
{
    const int m = i / RESULTS, column = n0 + i % RESULTS;
    const long long at = (long long)m * n + column;
    BesidePlaces found = {};
    found.inside = i < M * RESULTS && (!EDGE || column < n);
    if constexpr (BIAS) {
        found.bias[0] = bias0 + column, found.biased[0] = bias0;
        if (PRODUCTS > 1) found.bias[PRODUCTS - 1] = bias1 + column, found.biased[PRODUCTS - 1] = bias1;
    }
    found.z[0] = place_in<Z0>(z0, Z0 >= 4 ? place0(at) : at, m, column);
    found.z[1] = place_in<Z1>(z1, Z1 >= 4 ? place1(at) : at, m, column);
    return found;
}

// Reads what is there.
__device__ __forceinline__ Beside beside_of(unsigned i, const Y* bias0, const Y* bias1, const Y* z0, const Y* z1, int n0,
                                            int n)
{
    return places_beside(i, bias0, bias1, z0, z1, n0, n).read();
}

// Adds up the sums, times `scale_of(m)`, and stores results, also as `left` says. A thread has read what its first result
// needs while products were computed.
template <typename ScaleOf>
__device__ __forceinline__ void finish_rows(const float (&parts)[WARPS][COLUMNS][SUMS], R* y, const Beside& first,
                                            const Y* bias0, const Y* bias1, const Y* z0, const Y* z1, int n0, int n,
                                            const Left& left, const ScaleOf& scale_of)
{
    __syncthreads();
#pragma unroll
    for (unsigned base = 0; base < M * RESULTS; base += THREADS) {
        const unsigned i = base + threadIdx.x, m = i / RESULTS, result = i % RESULTS;
        const int column = n0 + result;
        if (i >= M * RESULTS || (EDGE && column >= n)) continue;
        const Beside beside = base == 0 ? first : beside_of(i, bias0, bias1, z0, z1, n0, n);
        float sums[PRODUCTS] = {};
        add_parts(sums, parts, m, result);
        const float by = scale_of(m);
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p) sums[p] *= by;
        if constexpr (BIAS) {
#pragma unroll
            for (int p = 0; p < PRODUCTS; ++p) sums[p] += float(beside.bias[p]);
        }
        const R stored = result_of(sums, 0, 0, 0, beside.z, beside.z + 1);
        y[(long long)m * n + column] = stored;
        left(stored, m, column, base == 0);
    }
}
