// The right matrix of multistage_int8.cu if it is computed at run time: y[n][k] = x[k][n], zeros past column k up
// to `ldb`, and the sums of the columns. A block moves COLUMNS of them, STEP rows at a time.
//
// T is the type of the elements.

constexpr int COLUMNS = 32, STEP = 128, GROUPS = 8;  // threads: GROUPS times COLUMNS

extern "C" __global__ void __launch_bounds__(COLUMNS * GROUPS)
pack_integers(const T* x, T* y, int* sums, int k, int n, int ldb)
{
    __shared__ __align__(16) T tile[COLUMNS][STEP + 4];
    __shared__ int parts[GROUPS][COLUMNS];
    const int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    const int n0 = blockIdx.x * COLUMNS;
    x += (long long)blockIdx.y * k * n + n0 + column;
    y += ((long long)blockIdx.y * n + n0) * ldb;
    int sum = 0;
    for (int k0 = 0; k0 < ldb; k0 += STEP) {
        __syncthreads();
#pragma unroll
        for (int i = group; i < STEP; i += GROUPS) {
            const bool inside = n0 + column < n && k0 + i < k;
            const T own = inside ? x[(long long)(k0 + i) * n] : T(0);
            tile[column][i] = own;
            sum += own;
        }
        __syncthreads();
        for (int i = threadIdx.x; i < COLUMNS * STEP / 4; i += COLUMNS * GROUPS) {
            const int row = i / (STEP / 4), at = i % (STEP / 4) * 4;
            if (n0 + row < n && k0 + at < ldb)
                *(int*)(y + (long long)row * ldb + k0 + at) = *(const int*)&tile[row][at];
        }
    }
    parts[group][column] = sum;
    __syncthreads();
    if (group || n0 + column >= n) return;
    for (int i = 1; i < GROUPS; ++i) sum += parts[i][column];
    sums[(long long)blockIdx.y * n + n0 + column] = sum;
}
