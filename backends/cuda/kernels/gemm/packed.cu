// Products with weights of a few bits, unpacked in registers: y[m][n] = sum of a[m][k] * w(n, k).
//
// One warp per column n and ROWS rows m. The weights are read once for these rows, adjacent lanes reading
// adjacent words; with few rows `a` is small and stays in the L1 cache.
//
// Compile-time: BITS of an integer; ROWS; GROUPED, whether `group` gives the block of each k.

constexpr int WARPS = 4;
constexpr unsigned MASK = (1u << BITS) - 1;

__device__ __forceinline__ void finish(const float* sums, const X* bias, X* y, int first, int rows,
                                       int column, int columns)
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sum = sums[r];
        for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (threadIdx.x % 32 == 0 && first + r < rows && column < columns) {
            if (bias) sum += float(bias[column]);
            y[(long long)(first + r) * columns + column] = X(sum);
        }
    }
}

// w(n, k) = (integer - zero) * scale, one scale and zero point per block of each column; `zeros` are packed
// like the integers, or `points` are floats, or both are null and all zero points are 2^(BITS - 1).
extern "C" __global__ void __launch_bounds__(32 * WARPS)
packed_integers(const X* a, const unsigned int* b, const X* scales, const unsigned char* zeros,
                const X* points, const int* group, const X* bias, X* y, int rows, int columns,
                int depth, int block, int blocks, int zero_bytes)
{
    constexpr int EACH = 32 / BITS;  // integers of a word, which are of one block
    const int lane = threadIdx.x % 32;
    const int column = blockIdx.x * WARPS + threadIdx.x / 32, first = blockIdx.y * ROWS;
    float sums[ROWS] = {};
    if (column < columns) {
        const long long words = (long long)blocks * block / EACH, own = (long long)column * blocks;
        for (int word = lane; word < words; word += 32) {
            const unsigned int codes = b[column * words + word];
            float scale = 0, zero = 0;
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int k = word * EACH + i;
                if (k >= depth) break;
                if (GROUPED || i == 0) {
                    const int at = GROUPED ? group[k] : k / block;
                    scale = float(scales[own + at]);
                    zero = float(1 << (BITS - 1));
                    if (points) zero = float(points[own + at]);
                    if (zeros) {
                        const int bit = at * BITS;
                        const unsigned char packed = zeros[(long long)column * zero_bytes + bit / 8];
                        zero = float(packed >> bit % 8 & MASK);
                    }
                }
                const float weight = (float(codes >> i * BITS & MASK) - zero) * scale;
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    if (first + r < rows) sums[r] += float(a[(long long)(first + r) * depth + k]) * weight;
            }
        }
    }
    finish(sums, bias, y, first, rows, column, columns);
}

struct Numbers {
    float at[16];
};

// w(n, k) = numbers[code] * absmax[block] of the element n * across + k * along of all codes, the
// first of a byte in its high bits.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
packed_codes(const X* a, const unsigned char* b, const X* absmax, X* y, Numbers numbers,
             int rows, int columns, int depth, int block, int across, int along)
{
    const int lane = threadIdx.x % 32;
    const int column = blockIdx.x * WARPS + threadIdx.x / 32, first = blockIdx.y * ROWS;
    float sums[ROWS] = {};
    if (column < columns) {
        for (int k = lane; k < depth; k += 32) {
            const long long at = (long long)column * across + (long long)k * along;
            const unsigned int code = b[at / 2] >> (at % 2 ? 0 : 4) & 15;
            const float weight = numbers.at[code] * float(absmax[at / block]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (first + r < rows) sums[r] += float(a[(long long)(first + r) * depth + k]) * weight;
        }
    }
    finish(sums, nullptr, y, first, rows, column, columns);
}
