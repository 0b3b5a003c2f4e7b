// Reductions of the middle axis of [outer][count][inner]. Each result is made by a fixed tree of
// partial results, so it does not change from run to run and rounds less than a running sum.
//
// Generated: start(), element(x), combine(a, b) and finish(a, count).

constexpr int ROWS = 8;     // warps of a block
constexpr int COLUMNS = 32;  // lanes of a warp

// inner = 1: WARPS warps share a row, neighbouring lanes read neighbouring elements.
extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS)
reduce_rows(const T* x, T* y, int outer, int count)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % WARPS;
    const int row = blockIdx.x * (ROWS / WARPS) + warp / WARPS;
    T result = start();
    if (row < outer) {
        const T* from = x + (long long)row * count;
#pragma unroll 4
        for (int i = part * 32 + lane; i < count; i += 32 * WARPS)
            result = combine(result, element(from[i]));
    }
#pragma unroll
    for (int other = 16; other; other /= 2)
        result = combine(result, __shfl_xor_sync(~0u, result, other));
    __shared__ T parts[ROWS];
    if (lane == 0) parts[warp] = result;
    __syncthreads();
    if (part == 0 && lane == 0 && row < outer) {
        for (int i = 1; i < WARPS; ++i) result = combine(result, parts[warp + i]);
        y[row] = finish(result, T(count));
    }
}

// inner > 1: a block reduces 32 neighbouring columns, its eight warps share the rows.
extern "C" __global__ void __launch_bounds__(ROWS * COLUMNS)
reduce_columns(const T* x, T* y, int count, int inner)
{
    const int lane = threadIdx.x % COLUMNS, part = threadIdx.x / COLUMNS;
    const int column = blockIdx.y * COLUMNS + lane;
    const T* from = x + (long long)blockIdx.x * count * inner + column;
    T result = start();
    if (column < inner) {
#pragma unroll 4
        for (int i = part; i < count; i += ROWS)
            result = combine(result, element(from[(long long)i * inner]));
    }
    __shared__ T parts[ROWS][COLUMNS];
    parts[part][lane] = result;
    __syncthreads();
    if (part == 0 && column < inner) {
#pragma unroll
        for (int i = 1; i < ROWS; ++i) result = combine(result, parts[i][lane]);
        y[(long long)blockIdx.x * inner + column] = finish(result, T(count));
    }
}
