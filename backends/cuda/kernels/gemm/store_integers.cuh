// The epilogue of a product of integers, y[m][n] = with_epilogue(sum over k of (a[m][k] - a_zero) * (b[n][k] -
// b_zero[n])): signed or unsigned bytes, with sums in int32, which wrap around.
//
// The bytes are multiplied as they are stored, because
//     sum of (a - za) * (b - zb) = sum of a * b - zb * sum of a + za * (k * zb - sum of b).
// The sums of b are precomputed (`b_sums`); those of a are products with ones, computed along with the others
// and only where b has zero points (ZERO_B). Outside of its image a window reads as the zero point of a.
//
// R is the type of the results: int32, or bytes that the sums are requantized to; Z is the type of scales.
// Compile-time: SPLIT but not PARTIAL; ZERO_B; BY_ROW, whether rows have their own zero points or scales. Generated:
// narrow, see quantize.cu.

#include "gemm/neighbours.cuh"
#include "gemm/inbox.cuh"

constexpr int ITEMS = BM * BN / 8;
constexpr bool QUANTIZED = sizeof(R) == 1;

struct Steps {  // 1 if there is one per row of a or column of b, 0 if there is one for all
    int a_zero, b_zero, a_scale, b_scale, y_scale, y_zero;
};

struct Parameters {  // of the product; null where there are none
    const T* a_zero;
    const U* b_zero;
    const int *b_sums, *bias;
    const Z *a_scale, *b_scale, *y_scale;
    const R* y_zero;
    Steps by;
};

struct OfRow {
    int zero;
    float scale, y_scale, y_zero;
};

struct OfColumn {
    int zero, weight, shift;  // b's zero point; the factor of a's zero point; the addend
    float scale;              // where not BY_ROW, of the sums as steps of y
};

__device__ __forceinline__ OfRow of_row(const Parameters& p, int row)
{
    OfRow found = {p.a_zero ? int(p.a_zero[row * p.by.a_zero]) : 0};
    if constexpr (QUANTIZED) {
        found.scale = float(p.a_scale[row * p.by.a_scale]);
        found.y_scale = float(p.y_scale[row * p.by.y_scale]);
        found.y_zero = float(p.y_zero[row * p.by.y_zero]);
    }
    return found;
}

__device__ __forceinline__ OfColumn of_column(const Parameters& p, int column, int k)
{
    OfColumn found;
    found.zero = ZERO_B ? int(p.b_zero[column * p.by.b_zero]) : 0;
    found.weight = (int)((u32)k * found.zero - p.b_sums[column]);
    found.shift = p.bias ? p.bias[column] : 0;
    found.scale = QUANTIZED ? float(p.b_scale[column * p.by.b_scale]) : 1.f;
    if constexpr (!BY_ROW) {
        const OfRow row = of_row(p, 0);
        found.shift = (int)(found.shift + (u32)row.zero * found.weight);
        if constexpr (QUANTIZED) found.scale = row.scale * found.scale / row.y_scale;
    }
    return found;
}

__device__ __forceinline__ R with_epilogue(int sum, const OfRow& row, const OfColumn& column)
{
    const int whole = (int)((u32)sum + column.shift + (BY_ROW ? (u32)row.zero * column.weight : 0));
    if constexpr (QUANTIZED) {
        const float factor = BY_ROW ? row.scale * column.scale / row.y_scale : column.scale;
        return narrow(float(whole) * factor, row.y_zero);
    } else {
        return whole;
    }
}

template <int N> using Some = Neighbours<int, N>;  // neighbouring sums

// Passes the sums of a thread to `take`, in pairs, with their row and column in the tile, after the correction for b's
// zero points.
template <typename Take>
__device__ __forceinline__ void each_pair(const Sums& sums, const OfColumn* columns, const Place& warp, const Take& take)
{
    const int row = warp.m + warp.lane / 4, column = warp.n + warp.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own = column + j * 8;
                Some<2> pair;
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    u32 sum = sums.of[i][j][half * 2 + q];
                    if constexpr (ZERO_B) sum -= (u32)sums.rows[i][half * 2] * columns[own + q].zero;
                    pair.at[q] = (int)sum;
                }
                take(row + i * 16 + half * 8, own, pair);
            }
}

// Adds up eight adjacent sums of all blocks of the cluster.
__device__ __forceinline__ Some<8> add(const Inbox<BM, BN / 8>& inbox, int item)
{
    Some<8> sums = {};
#pragma unroll 4
    for (int block = 0; block < inbox.splits; ++block)
#pragma unroll
        for (int q = 0; q < 8; q += 4) {
            const float4 found = inbox.received(item, q, block);
            sums.at[q] += __float_as_int(found.x), sums.at[q + 1] += __float_as_int(found.y);
            sums.at[q + 2] += __float_as_int(found.z), sums.at[q + 3] += __float_as_int(found.w);
        }
    return sums;
}

struct StoreIntegers {
    R* c;  // of one of the batch
    Parameters parameters;
    int m, n, k, ldc;
    OfColumn* columns = nullptr;
    Inbox<BM, BN / 8> inbox = {};

    __device__ __forceinline__ void open(unsigned char* memory, const Block& block)
    {
        if constexpr (SPLIT != CLUSTER) return;
        inbox = {memory, block.split, block.splits};
        inbox.open();
    }

    __device__ __forceinline__ void prepare(LoaderA& loader) const
    {
        const T* zero = parameters.a_zero;
        if (ROWS == WINDOWS && zero) loader.outside = (unsigned char)*zero * ONES;
    }

    __device__ __forceinline__ void begin(const Block& block)
    {
        __shared__ OfColumn of_block[BN];
        columns = of_block;
        const int group = ROWS == MATRIX ? 0 : block.batch * n;  // its first filter
        parameters.b_sums -= group;
        for (int i = threadIdx.x; i < BN; i += THREADS)
            columns[i] = block.n0 + i < n ? of_column(parameters, group + block.n0 + i, k) : OfColumn{};
    }

    __device__ __forceinline__ void store(const Sums& sums, unsigned char* shared, const Block& block,
                                          const Place& warp) const
    {
        int begin = 0, end = ITEMS;
        if constexpr (SPLIT == CLUSTER) {
            begin = inbox.begin(), end = inbox.end();
            inbox.wait_open();
            each_pair(sums, columns, warp, [&](int row, int column, const Some<2>& pair) {
                inbox.send(row, column / 8, column % 8,
                           make_float2(__int_as_float(pair.at[0]), __int_as_float(pair.at[1])));
            });
            inbox.wait_received();
        } else {
            cp_async_wait<0>();
            __syncthreads();
            each_pair(sums, columns, warp, [&](int row, int column, const Some<2>& pair) {
                *(Some<2>*)((int*)shared + row * PITCH + column) = pair;
            });
            __syncthreads();
        }

        const int m0 = block.m0, n0 = block.n0;
        OfRow by_row = of_row(parameters, 0);
        for (int item = begin + threadIdx.x; item < end; item += THREADS) {
            const int i = item / (BN / 8), j = item % (BN / 8) * 8;
            if (m0 + i >= m || n0 + j >= n) continue;
            if constexpr (BY_ROW) by_row = of_row(parameters, m0 + i);
            Some<8> found;
            if constexpr (SPLIT == CLUSTER) found = add(inbox, item);
            else found = *(const Some<8>*)((const int*)shared + i * PITCH + j);
            Neighbours<R, 8> results;
#pragma unroll
            for (int q = 0; q < 8; ++q) results.at[q] = with_epilogue(found.at[q], by_row, columns[j + q]);
            keep(c + (long long)(m0 + i) * ldc + n0 + j, results, n - n0 - j);
        }
    }
};
