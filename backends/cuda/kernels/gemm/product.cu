// y[m][n] = epilogue(alpha * sum over k of (a[m][k] - a_zero[m]) * (b[k][n] - b_zero[n]) + beta *
// c[m][n]) for any element types and strides: transposed operands, broadcast batches.
//
// A block computes a tile of SIDE x SIDE results, one per thread; tiles of both operands are staged in
// shared memory. XA, XB, XC and Y are the element types, A that of the arithmetic. Compile-time:
// RANK, the number of batch axes; ADDED, whether c is there; SCALED, whether alpha or beta is not 1;
// ZERO_A and ZERO_B.

constexpr int SIDE = 16;

struct Ints {
    long long at[RANK];
};

struct Steps {  // distances of neighbours, in elements; 0 where an operand is repeated
    long long a_m, a_k, b_k, b_n, c_m, c_n, zero_a, zero_b;
};

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
product(const XA* a, const XB* b, const XC* c, Y* y, const XA* a_zero, const XB* b_zero,
        const Y* z0, const Y* z1, int m, int n, int k, int tiles_n, int tiles, double alpha,
        double beta, Steps by, Ints stack, Ints of_a, Ints of_b)
{
    __shared__ A tile_a[SIDE][SIDE + 1], tile_b[SIDE][SIDE + 1];
    const int tile = blockIdx.x % tiles, number = blockIdx.x / tiles;
    const int row = tile / tiles_n * SIDE, column = tile % tiles_n * SIDE;
    const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
    int rest = number;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const long long at = rest % stack.at[axis];
        a += at * of_a.at[axis];
        b += at * of_b.at[axis];
        rest /= stack.at[axis];
    }
    const A zero_a = ZERO_A && row + i < m ? A(a_zero[(row + i) * by.zero_a]) : A(0);
    const A zero_b = ZERO_B && column + j < n ? A(b_zero[(column + j) * by.zero_b]) : A(0);
    A sum = 0;
    for (int first = 0; first < k; first += SIDE) {
        tile_a[i][j] = row + i < m && first + j < k
                           ? A(a[(row + i) * by.a_m + (first + j) * by.a_k]) - zero_a : A(0);
        tile_b[i][j] = column + j < n && first + i < k
                           ? A(b[(first + i) * by.b_k + (column + j) * by.b_n]) - zero_b : A(0);
        __syncthreads();
#pragma unroll
        for (int q = 0; q < SIDE; ++q) sum += tile_a[i][q] * tile_b[q][j];
        __syncthreads();
    }
    if (row + i >= m || column + j >= n) return;
    if (SCALED) sum *= A(alpha);
    if (ADDED) {
        const A more = A(c[(row + i) * by.c_m + (column + j) * by.c_n]);
        sum += SCALED ? A(beta) * more : more;
    }
    const long long at = ((long long)number * m + row + i) * n + column + j;
    y[at] = epilogue(sum, at, row + i, column + j, z0, z1);
}
