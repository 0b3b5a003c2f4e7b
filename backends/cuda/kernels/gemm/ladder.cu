// y[m][n] = epilogue(sum over k of a[m][k] * b[k][n]), optimized step by step as textbooks do.
// For study only: simt.cu does the same and more. Read the functions in order; each adds one idea
// to the one before it.
//
// Compile-time: VECTOR, the elements of one load and store of gemm_registers: 1 or 4.

// 1. One thread per result. Adjacent threads read adjacent columns of b and the same row of a, so
// that loads are coalesced; but every number is loaded from the caches 2 * k times.
extern "C" __global__ void gemm_naive(const float* a, const float* b, float* y, const float* z0,
                                      const float* z1, int m, int n, int k)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= n) return;
    float sum = 0;
    for (int q = 0; q < k; ++q) sum += a[(long long)row * k + q] * b[(long long)q * n + column];
    const long long at = (long long)row * n + column;
    y[at] = epilogue(sum, at, row, column, z0, z1);
}

// 2. A block copies a square tile of a and one of b to shared memory, where SIDE threads read each
// number: SIDE times less traffic. Still two loads per multiplication.
constexpr int SIDE = 32;

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
gemm_blocked(const float* a, const float* b, float* y, const float* z0, const float* z1, int m,
             int n, int k)
{
    __shared__ float tile_a[SIDE][SIDE], tile_b[SIDE][SIDE];
    const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
    const int row = blockIdx.y * SIDE + i, column = blockIdx.x * SIDE + j;
    float sum = 0;
    for (int first = 0; first < k; first += SIDE) {
        tile_a[i][j] = row < m && first + j < k ? a[(long long)row * k + first + j] : 0;
        tile_b[i][j] = first + i < k && column < n ? b[(long long)(first + i) * n + column] : 0;
        __syncthreads();
#pragma unroll
        for (int q = 0; q < SIDE; ++q) sum += tile_a[i][q] * tile_b[q][j];
        __syncthreads();
    }
    if (row >= m || column >= n) return;
    const long long at = (long long)row * n + column;
    y[at] = epilogue(sum, at, row, column, z0, z1);
}

// 3. A thread computes PER x PER results: 2 * PER loads from shared memory for PER * PER
// multiplications, whose sums stay in registers.
// 4. The same with VECTOR = 4: one instruction moves four adjacent elements.
constexpr int TILE = 128, DEPTH = 8, PER = 8;  // results of a block, terms of a step, of a thread
constexpr int ACROSS = TILE / PER, THREADS = ACROSS * ACROSS;

struct alignas(4 * VECTOR) Words {
    float at[VECTOR];
};

__device__ __forceinline__ Words words(const float* from, bool inside)
{
    return inside ? *(const Words*)from : Words{};
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_registers(const float* a, const float* b, float* y, const float* z0, const float* z1, int m,
               int n, int k)
{
    alignas(16) __shared__ float tile_a[DEPTH][TILE], tile_b[DEPTH][TILE];
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    const int i = threadIdx.x / ACROSS * VECTOR, j = threadIdx.x % ACROSS * VECTOR;
    constexpr int PARTS = PER / VECTOR, APART = TILE / PARTS;  // of a thread, and how far apart
    float sums[PER][PER] = {};
    for (int first = 0; first < k; first += DEPTH) {
        for (int at = threadIdx.x * VECTOR; at < TILE * DEPTH; at += THREADS * VECTOR) {
            const int row = at / DEPTH, term = at % DEPTH;
            const bool inside = top + row < m && first + term < k;
            const Words found = words(a + (long long)(top + row) * k + first + term, inside);
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) tile_a[term + v][row] = found.at[v];
        }
        for (int at = threadIdx.x * VECTOR; at < DEPTH * TILE; at += THREADS * VECTOR) {
            const int term = at / TILE, column = at % TILE;
            const bool inside = first + term < k && left + column < n;
            *(Words*)&tile_b[term][column] =
                words(b + (long long)(first + term) * n + left + column, inside);
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEPTH; ++q) {
            Words rows[PARTS], columns[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                rows[part] = *(const Words*)&tile_a[q][part * APART + i];
                columns[part] = *(const Words*)&tile_b[q][part * APART + j];
            }
#pragma unroll
            for (int u = 0; u < PER; ++u)
#pragma unroll
                for (int v = 0; v < PER; ++v) {
                    const float right = columns[v / VECTOR].at[v % VECTOR];
                    sums[u][v] += rows[u / VECTOR].at[u % VECTOR] * right;
                }
        }
        __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < PER; ++u) {
        const int row = top + u / VECTOR * APART + i + u % VECTOR;
        if (row >= m) continue;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const int column = left + part * APART + j;
            if (column >= n) continue;
            const long long at = (long long)row * n + column;
            Words found;
#pragma unroll
            for (int v = 0; v < VECTOR; ++v)
                found.at[v] = epilogue(sums[u][part * VECTOR + v], at + v, row, column + v, z0, z1);
            *(Words*)(y + at) = found;
        }
    }
}
