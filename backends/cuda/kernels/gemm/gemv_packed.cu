// y[m][n] = epilogue(sum over k of x[m][k] * w0[n][k] + bias0[n]) for few rows m and weights of a few bits, or of two such
// sums, with w1, scales1 and bias1 likewise; see gemv_integers.cuh.
//
// Where there are many more tiles of rows of weights than blocks run at once, these take them in turns (PERSISTENT): a block normalizes
// x once, and requests weights of the next tile while it adds up the sums of one.
//
// Further compile-time constants: AHEAD, whether weights behind those in registers are brought into the second cache before x
// is there; DIVIDES and LEAVES, see measured_rows.cuh.

#include "gemm/gemv_integers.cuh"
#include "gemm/measured_rows.cuh"
#include "gemm/scaled_rows.cuh"
#include "gemm/finish_rows.cuh"

static_assert(!(LEAVES || DIVIDES) || !PERSISTENT, "a block has results of one tile");
static_assert(!DIVIDES || !(SCALED || NORMALIZED), "rows are divided once");
static_assert(!SCALED || (M > 1 && !PERSISTENT), "a single row is normalized before it is multiplied");

constexpr int LENGTH = (K + STRIDE - 1) / STRIDE * STRIDE;  // of a row in whole strides of a block

// A step of a block's tiles: the first row of a tile, beyond the last one at the end, and the first term.
struct Step {
    int n0, k;

    __device__ __forceinline__ void advance()
    {
        k += STRIDE;
        if (!PERSISTENT || k < LENGTH) return;
        k = 0;
        n0 += int(gridDim.x) * RESULTS;
    }
};

// Brings the terms behind those in registers into the second cache, at most as many.
__device__ __forceinline__ void prefetch_later(const unsigned char* w0, const unsigned char* w1, int n0, int n)
{
    constexpr int FROM = 2 * STRIDE / STEP * 64, END = 2 * FROM < BYTES ? 2 * FROM : BYTES;
    constexpr int LINES = END > FROM ? (END - FROM + 127) / 128 : 0, PER_ROW = LINES ? LINES : 1;
#pragma unroll
    for (int base = 0; base < ROWS * LINES; base += THREADS) {
        const int i = base + threadIdx.x, row = i / PER_ROW, eight = row / 8;
        if (ROWS * LINES % THREADS && i >= ROWS * LINES) break;
        const long long at = min(n0 + eight / PRODUCTS * 8 + row % 8, n - 1);
        prefetch_l2((eight % PRODUCTS ? w1 : w0) + at * BYTES + FROM + i % PER_ROW * 128);
    }
}

// Multiplies a warp's sums of a single row.
__device__ __forceinline__ void scale_sums(float (&sums)[PAIRS][GROUPS][4], float by)
{
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair)
#pragma unroll
        for (int q = 0; q < 4; ++q) sums[pair][0][q] *= by;
}

// The rows of x, which start at an address.
__device__ __forceinline__ auto rows_to_multiply(const X* from)
{
    if constexpr (SCALED) return ScaledRows{from, factor_memory(), 0};
    else return AdjacentRows{from};
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
gemv_packed(const unsigned char* w0, const unsigned char* w1, const X* scales0, const X* scales1, const X* x,
            const X* scale, const X* shift, float epsilon, R* y, const X* bias0, const X* bias1, const X* z0, const X* z1,
            const float* measured, float unit, R* rows_left, const R* factors_left, float* squares_left, int n)
{
    __shared__ float parts[1 + PERSISTENT][WARPS][COLUMNS][SUMS], squares_of_row[WARPS];
    __shared__ Squares squares;
    const int warp = threadIdx.x / 32, first = warp * (STEPS * STEP);
    Step now = {int(blockIdx.x) * RESULTS, 0}, later = now;
    grid_dependency_launch();
    Parameters parameters;
    parameters.load(scale, shift);
    const auto load_later = [&](Buffer& to) {
        if (!PERSISTENT || later.n0 < n) load_weights(to, rows_from(w0, w1, later.n0, n), first + later.k);
        later.advance();
    };
    Buffer even, odd;
    load_later(even);
    load_later(odd);
    copy_scales(scales0, scales1, now.n0, n);
    if constexpr (SCALED) copy_factors(scale);
    else parameters.keep(scale, shift);
    if constexpr (AHEAD) prefetch_later(w0, w1, now.n0, n);
    BesidePlaces places = places_beside(threadIdx.x, bias0, bias1, z0, z1, now.n0, n);
    const Left left(rows_left, factors_left, squares_left, now.n0, n);
    if constexpr (Z0) pin(places.z[0]);
    if constexpr (Z1) pin(places.z[1]);
    cp_async_wait<0>();
    __syncthreads();  // scales and factors are there
    grid_dependency_sync();
    Beside beside = places.read();
    float back = 1;  // what sums are multiplied by
    const X* from = row_memory();
    if constexpr (DEFERS) back = scale_words(x, parameters, squares_of_row);
    else from = rows_of(x, parameters, epsilon);
    auto values = rows_to_multiply(from);
    if constexpr (DEFERS) __syncwarp();
    if constexpr (DIVIDES) Measures(measured).leave(squares);
    const Masks masks;
    float sums[PAIRS][GROUPS][4] = {};
    int half = 0;
    const auto copy_next_scales = [&](int to) {
        const int next = now.n0 + int(gridDim.x) * RESULTS;
        if (PERSISTENT && next < n) copy_scales(scales0, scales1, next, n, scale_memory(to));
    };
    const auto multiply_step = [&](Buffer& buffer) {
        multiply<K != STRIDE>(sums, buffer, values, first + now.k, masks, scale_memory(half));
        load_later(buffer);
        now.k += STRIDE;
    };
    // Ends a tile; returns whether there is another one.
    const auto finish_tile = [&] {
        if constexpr (DEFERS) scale_sums(sums, back);
        leave_fragments(parts[half][warp], sums);
        if constexpr (SCALED) leave_squares(squares, values);
        cp_async_wait<0>();
        finish_rows(parts[half], y, beside, bias0, bias1, z0, z1, now.n0, n, left, [&](int m) {
            if constexpr (DIVIDES) return unit * inverse_root(squares, m, epsilon);
            else if constexpr (DEFERS) return rsqrtf(mean_of(squares_of_row) + epsilon);
            else if constexpr (!SCALED) return 1.0f;
            else return inverse_root(squares, m, epsilon);
        });
        now = {now.n0 + int(gridDim.x) * RESULTS, 0};
        if (!PERSISTENT || now.n0 >= n) return false;
        beside = beside_of(threadIdx.x, bias0, bias1, z0, z1, now.n0, n);
        copy_next_scales(half);
        half ^= 1;
        clear(sums);
        return true;
    };
    copy_next_scales(1);
    for (;;) {
        multiply_step(even);
        if (LENGTH / STRIDE % 2 == 1 && now.k >= LENGTH && !finish_tile()) break;
        multiply_step(odd);
        if (now.k >= LENGTH && !finish_tile()) break;
    }
}
