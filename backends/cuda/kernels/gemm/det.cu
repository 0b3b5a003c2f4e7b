// The determinant of n x n matrices by elimination with pivoting. One thread per matrix; `work` holds
// a copy of all matrices.

extern "C" __global__ void __launch_bounds__(256)
determinant(const T* x, A* work, T* y, long long count, int n)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    A* rows = work + i * n * n;
    for (int k = 0; k < n * n; ++k) rows[k] = A(x[i * n * n + k]);
    A result = 1;
    for (int k = 0; k < n; ++k) {
        int pivot = k;
        for (int r = k + 1; r < n; ++r)
            if (fabs(rows[r * n + k]) > fabs(rows[pivot * n + k])) pivot = r;
        const A top = rows[pivot * n + k];
        result *= pivot == k ? top : -top;
        for (int c = k; c < n; ++c) {
            const A moved = rows[pivot * n + c];
            rows[pivot * n + c] = rows[k * n + c];
            rows[k * n + c] = moved;
        }
        for (int r = k + 1; r < n && top != A(0); ++r) {
            const A share = rows[r * n + k] / top;
            for (int c = k; c < n; ++c) rows[r * n + c] -= share * rows[k * n + c];
        }
    }
    y[i] = T(result);
}
