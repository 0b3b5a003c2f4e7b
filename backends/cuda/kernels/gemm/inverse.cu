// The inverse of n x n matrices by Gauss-Jordan elimination with pivoting, one block per matrix, one thread per
// column. `work` holds every matrix next to its inverse under construction: [matrices, n, 2 n].

extern "C" __global__ void __launch_bounds__(128)
inverse(const T* x, A* work, T* y, int n)
{
    __shared__ int pivot;
    const int width = 2 * n;
    x += (long long)blockIdx.x * n * n;
    y += (long long)blockIdx.x * n * n;
    A* const rows = work + (long long)blockIdx.x * n * width;
    for (int i = threadIdx.x; i < n * width; i += 128) {
        const int r = i / width, c = i % width;
        rows[i] = c < n ? A(x[r * n + c]) : A(c - n == r);
    }
    __syncthreads();
    for (int k = 0; k < n; ++k) {
        if (threadIdx.x == 0) {
            pivot = k;
            for (int r = k + 1; r < n; ++r)
                if (fabs(rows[r * width + k]) > fabs(rows[pivot * width + k])) pivot = r;
        }
        __syncthreads();
        // Column k is updated last: all others are computed from it.
        const A top = rows[pivot * width + k];
        for (int i = threadIdx.x; i < width - 1; i += 128) {
            const int c = i < k ? i : i + 1;
            const A own = rows[pivot * width + c] / top;
            rows[pivot * width + c] = rows[k * width + c];
            rows[k * width + c] = own;
            for (int r = 0; r < n; ++r) {
                // Rows k and pivot were swapped, except for column k: the factor of the former row k is still in row k.
                const A share = r == pivot ? rows[k * width + k] : rows[r * width + k];
                if (r != k) rows[r * width + c] -= share * own;
            }
        }
        __syncthreads();
        for (int r = threadIdx.x; r < n; r += 128) rows[r * width + k] = A(r == k);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n * n; i += 128) y[i] = T(rows[i / n * width + n + i % n]);
}
