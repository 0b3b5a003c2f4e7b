// Linear models and support vector machines: products of rows and a few vectors, or their distances. One warp per row.
//
// X is the type of features, A that of the arithmetic. Compile-time: WARPS; KERNEL, one of those below;
// CLASSES of `couple`.

#include "reduce/block.cuh"
#include "ptx/pdl.cuh"

enum { LINEAR, POLY, RBF, SIGMOID, SQUARES, DISTANCE };
constexpr bool APART = KERNEL == RBF || KERNEL == SQUARES || KERNEL == DISTANCE;

__device__ __forceinline__ A bent(A sum, A gamma, A offset, A degree)
{
    if (KERNEL == RBF) return exp(-gamma * sum);
    if (KERNEL == DISTANCE) return sqrt(sum);
    if (KERNEL == POLY) return pow(gamma * sum + offset, degree);
    if (KERNEL == SIGMOID) return tanh(gamma * sum + offset);
    return sum;
}

// y[v, row] = kernel of x[row] and vectors[v].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
kernels(const X* __restrict__ x, const A* __restrict__ vectors, A* y, int rows, int columns, int count, double gamma,
        double offset, double degree)
{
    const int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    grid_dependency_sync();
    if (row >= rows) return;
    x += (long long)row * columns;
    for (int v = 0; v < count; ++v) {
        const A* const vector = vectors + (long long)v * columns;
        A sum = 0;
        for (int c = lane; c < columns; c += 32) {
            const A own = A(x[c]), other = vector[c];
            sum += APART ? (own - other) * (own - other) : own * other;
        }
        sum = over_warp(sum, Plus());
        if (lane == 0) y[(long long)v * rows + row] = bent(sum, A(gamma), A(offset), A(degree));
    }
}

// y[pair, row] = sum of weighted kernels of the two classes' vectors; those of class c are begins[c] to begins[c + 1].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
pairs(const A* __restrict__ kernels, const A* __restrict__ weights, const int* begins, A* y, int rows, int count,
      int classes)
{
    const int row = blockIdx.x * (32 * WARPS) + threadIdx.x;
    grid_dependency_sync();
    if (row >= rows) return;
    for (int i = 0, pair = 0; i < classes; ++i) {
        for (int j = i + 1; j < classes; ++j, ++pair) {
            A first = 0, second = 0;
            for (int v = begins[i]; v < begins[i + 1]; ++v)
                first += kernels[(long long)v * rows + row] * weights[(long long)(j - 1) * count + v];
            for (int v = begins[j]; v < begins[j + 1]; ++v)
                second += kernels[(long long)v * rows + row] * weights[(long long)i * count + v];
            y[(long long)pair * rows + row] = first + second;
        }
    }
}

// y[row] = sum of all weighted kernels.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
weighted(const A* __restrict__ kernels, const A* __restrict__ weights, A* y, int rows, int count)
{
    const int row = blockIdx.x * (32 * WARPS) + threadIdx.x;
    grid_dependency_sync();
    if (row >= rows) return;
    A sum = 0;
    for (int v = 0; v < count; ++v) sum += kernels[(long long)v * rows + row] * weights[v];
    y[row] = sum;
}

// The class that wins most of its pairs; the first one in a tie. scores: [pairs, rows].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
vote(const A* scores, const A* rho, const long long* labels, long long* label, int rows, int classes)
{
    const int row = blockIdx.x * (32 * WARPS) + threadIdx.x;
    grid_dependency_sync();
    if (row >= rows) return;
    int best = 0, most = -1;
    for (int c = 0; c < classes; ++c) {
        int won = 0;
        for (int i = 0, pair = 0; i < classes; ++i) {
            for (int j = i + 1; j < classes; ++j, ++pair) {
                if (i != c && j != c) continue;
                const bool first = scores[(long long)pair * rows + row] + rho[pair] > 0;
                won += first == (i == c);
            }
        }
        if (won > most) most = won, best = c;
    }
    label[row] = labels[best];
}

// Class probabilities that best fit the pairwise probabilities, by the method of libsvm (Wu, Lin and Weng,
// 2004). scores: [pairs, rows]; y: [CLASSES, rows].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
couple(const A* scores, const A* rho, const A* slopes, const A* offsets, A* y, int rows)
{
    const int row = blockIdx.x * (32 * WARPS) + threadIdx.x;
    grid_dependency_sync();
    if (row >= rows) return;
    A matrix[CLASSES][CLASSES], p[CLASSES], gradient[CLASSES];
    for (int i = 0; i < CLASSES; ++i) matrix[i][i] = 0, p[i] = A(1) / CLASSES;
    for (int i = 0, pair = 0; i < CLASSES; ++i) {
        for (int j = i + 1; j < CLASSES; ++j, ++pair) {
            const A score = scores[(long long)pair * rows + row] + rho[pair];
            const A half = A(0.5) * tanh(A(0.5) * (score * slopes[pair] + offsets[pair]));
            const A won = min(max(A(0.5) - half, A(1e-7)), A(1 - 1e-7)), lost = 1 - won;
            matrix[i][j] = matrix[j][i] = -won * lost;
            matrix[j][j] += won * won;
            matrix[i][i] += lost * lost;
        }
    }
    for (int round = 0; round < (CLASSES > 100 ? CLASSES : 100); ++round) {
        A value = 0, apart = 0;
        for (int i = 0; i < CLASSES; ++i) {
            gradient[i] = 0;
            for (int j = 0; j < CLASSES; ++j) gradient[i] += matrix[i][j] * p[j];
            value += p[i] * gradient[i];
        }
        for (int i = 0; i < CLASSES; ++i) apart = max(apart, A(fabs(gradient[i] - value)));
        if (apart < A(0.005 / CLASSES)) break;
        for (int t = 0; t < CLASSES; ++t) {
            const A step = (value - gradient[t]) / matrix[t][t], whole = 1 + step;
            p[t] += step;
            value = (value + step * (step * matrix[t][t] + 2 * gradient[t])) / (whole * whole);
            for (int j = 0; j < CLASSES; ++j) {
                gradient[j] = (gradient[j] + step * matrix[t][j]) / whole;
                p[j] /= whole;
            }
        }
    }
    for (int i = 0; i < CLASSES; ++i) y[(long long)i * rows + row] = p[i];
}
