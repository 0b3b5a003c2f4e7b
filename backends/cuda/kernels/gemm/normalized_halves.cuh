// Rows that swap_f16x3.cu normalizes as it multiplies them, and moments of rows that it stores for another product to do so.
//
// (x - mean) / deviation * scale + shift, times weights, is
//
//     (sum over k of x[k] * v[n][k] - mean * sums[n]) / deviation + shifts[n],
//
// where v[n][k] is scale[k] * w[n][k], sums[n] adds these up, and shifts[n] the products of shift and weights.
//
// The product in front has stored x in halves, and the moments of row_moments.cuh.
//
// Compile-time: MEASURED, whether moments of results are stored; NORMALIZED, whether rows of `a` are normalized; CENTRED,
// whether a mean is subtracted; KEPT, how many fours of normalized rows a thread stores, too.

#include "gemm/row_moments.cuh"

struct Nothing {
    template <int LANES> __device__ __forceinline__ void operator()(int row, int lane, float2 of_row) const {}
};

// What happens to N adjacent sums.
template <int N> struct Around : AsTheyAre {
    float sums[N], shifts[N];
    const float2* rows;  // mean and inverse deviation

    // Of columns that never change.
    __device__ __forceinline__ Around(const float* columns, const float2* rows, int column, int n) : rows(rows)
    {
        if (!NORMALIZED || column >= n) return;
#pragma unroll
        for (int q = 0; q < N; q += 4) {
            *(float4*)(sums + q) = *(const float4*)(columns + column + q);
            *(float4*)(shifts + q) = *(const float4*)(columns + n + column + q);
        }
    }

    __device__ __forceinline__ void before(float (&values)[N], int row) const
    {
        if constexpr (NORMALIZED) {
            const float2 of_row = rows[row];
#pragma unroll
            for (int q = 0; q < N; ++q) values[q] = fmaf(fmaf(-of_row.x, sums[q], values[q]), of_row.y, shifts[q]);
        }
    }

    template <typename Results> __device__ __forceinline__ void after(const Results& results, int row, int column) const {}
};

// Stores the moments of a part of a row, of which sixteen neighbouring threads have four adjacent results each.
__device__ __forceinline__ void measure(float2* moments, const float (&results)[4], int row, int term, int n, bool there)
{
    float total = 0, squares = 0;
#pragma unroll
    for (int q = 0; q < 4; ++q) total += results[q];
#pragma unroll
    for (int other = 1; other < OF_PART / 4; other *= 2) total += __shfl_xor_sync(~0u, total, other);
    const float mean = total / OF_PART;
#pragma unroll
    for (int q = 0; q < 4; ++q) squares += (results[q] - mean) * (results[q] - mean);
#pragma unroll
    for (int other = 1; other < OF_PART / 4; other *= 2) squares += __shfl_xor_sync(~0u, squares, other);
    if (there && term % OF_PART == 0) moments[row * (n / OF_PART) + term / OF_PART] = make_float2(mean, squares);
}

// Normalized rows that are stored, too: the blocks that have the same rows share their parts, of which sixteen neighbouring
// threads have four adjacent elements each.
struct KeptRows {
    static constexpr int PARTS = K / OF_PART, LANES = OF_PART / 4, AT_ONCE = CONSUMERS / LANES;
    int first, last, m0, m;  // of the parts of rows that are this block's
    float4 found[KEPT > 0 ? KEPT : 1], by[KEPT > 0 ? KEPT : 1], more[KEPT > 0 ? KEPT : 1];

    __device__ __forceinline__ KeptRows(const Block& block, int m, int n) : m0(block.m0), m(m)
    {
        const int blocks = (n + BN - 1) / BN * block.splits, own = block.n0 / BN * block.splits + block.split;
        first = BM * PARTS * own / blocks, last = BM * PARTS * (own + 1) / blocks;
    }

    // Reads this thread's.
    __device__ __forceinline__ void read(const float* rows, const float* scale, const float* shift)
    {
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            if (!is_there(i)) continue;
            found[i] = *(const float4*)(rows + row(i) * K + column(i));
            by[i] = *(const float4*)(scale + column(i));
            more[i] = shift ? *(const float4*)(shift + column(i)) : make_float4(0, 0, 0, 0);
        }
    }

    // Stores them normalized.
    __device__ __forceinline__ void store(float* to, const float2* of_rows) const
    {
        if (threadIdx.x >= CONSUMERS) return;
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            if (!is_there(i)) continue;
            const float2 of = of_rows[row(i) - m0];
            float4 x = found[i];
            x.x = (x.x - of.x) * of.y * by[i].x + more[i].x, x.y = (x.y - of.x) * of.y * by[i].y + more[i].y;
            x.z = (x.z - of.x) * of.y * by[i].z + more[i].z, x.w = (x.w - of.x) * of.y * by[i].w + more[i].w;
            *(float4*)(to + row(i) * K + column(i)) = x;
        }
    }

private:
    __device__ __forceinline__ int number(int i) const { return first + i * AT_ONCE + threadIdx.x / LANES; }
    __device__ __forceinline__ int row(int i) const { return m0 + number(i) % BM; }
    __device__ __forceinline__ int column(int i) const { return number(i) / BM * OF_PART + threadIdx.x % LANES * 4; }
    __device__ __forceinline__ bool is_there(int i) const { return number(i) < last && row(i) < m; }
};
