// The inverse of n x n matrices by elimination with pivots (Gauss and Jordan), one block a matrix, a column a
// thread. `work` holds every matrix beside what becomes its inverse: [matrices, n, 2 n].

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
        // Column k goes last: all others are made of it.
        const A top = rows[pivot * width + k];
        for (int i = threadIdx.x; i < width - 1; i += 128) {
            const int c = i < k ? i : i + 1;
            const A own = rows[pivot * width + c] / top;
            rows[pivot * width + c] = rows[k * width + c];
            rows[k * width + c] = own;
            for (int r = 0; r < n; ++r) {
                // The row that was k lies in the place of the pivot now; its share moved with it.
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
