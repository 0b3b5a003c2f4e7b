// Forests of decision trees: a thread traverses the trees of a slice for a row, several of them at a time, and adds
// up the leaves; ml/scores.cu adds the slices. Weights are added in double, within a slice in the order of
// the trees, and then slice by slice: sums of float weights are exact unless the weights differ by more
// than a factor of 2^29 / trees, and so independent of the order of additions.
//
// A block has ROWS rows and THREADS / ROWS slices. Threads of a warp with different rows are mostly in the
// same tree, whose upper nodes they share; with STAGED, their features are in shared memory, one column per bank.
//
// X is the type of features, V that of thresholds and weights, A (double) that of sums.
// Compile-time: ROWS, THREADS; FLIGHT, the number of trees that a thread traverses at a time; WIDE and FEATURE_BITS,
// the packing of nodes; MODE, the comparison of all nodes, or MIXED; MISSING, whether any node sends NaN to its
// true child; STAGED; SINGLE, whether every leaf is one weight of one target; KEPT, whether sums are kept in
// shared memory; those of sums.cuh.

#include "ptx/pdl.cuh"
#include "ml/sums.cuh"

enum { LEQ, LT, GTE, GT, EQ, NEQ, MIXED };

template <bool> struct Nodes;

// Siblings are adjacent, and stored after their tree's root; a leaf has distance 0. From the lowest bit: MISSING,
// mode (if MIXED), feature, distance of the false child from the root. A leaf's value is its weight, or the index
// of its first weight.
template <> struct Nodes<false> {
    struct __align__(2 * sizeof(V)) Node {
        V value;
        unsigned bits;
    };
    static constexpr int MODE_BITS = MODE == MIXED ? 3 : 0;
    static __device__ __forceinline__ bool missing(const Node& n) { return n.bits & 1; }
    static __device__ __forceinline__ int mode(const Node& n) { return MODE == MIXED ? n.bits >> 1 & 7 : MODE; }
    static __device__ __forceinline__ int feature(const Node& n)
    {
        return n.bits >> (1 + MODE_BITS) & ((1u << FEATURE_BITS) - 1);
    }
    static __device__ __forceinline__ bool is_leaf(const Node& n)
    {
        return !(n.bits >> (1 + MODE_BITS + FEATURE_BITS));
    }
    static __device__ __forceinline__ int next(const Node& n, int root, bool taken)
    {
        return root + int(n.bits >> (1 + MODE_BITS + FEATURE_BITS)) + taken;
    }
};

// Any two children; a leaf has -1 in place of the true one.
template <> struct Nodes<true> {
    struct __align__(4 * sizeof(V)) Node {
        V value;
        int bits, no, yes;
    };
    static __device__ __forceinline__ bool missing(const Node& n) { return n.bits & 1; }
    static __device__ __forceinline__ int mode(const Node& n) { return n.bits >> 1 & 7; }
    static __device__ __forceinline__ int feature(const Node& n) { return n.bits >> 4; }
    static __device__ __forceinline__ bool is_leaf(const Node& n) { return n.yes < 0; }
    static __device__ __forceinline__ int next(const Node& n, int, bool taken) { return taken ? n.yes : n.no; }
};

using Packing = Nodes<WIDE>;
using Node = Packing::Node;

// A weight; the last one of a leaf stores the complement of its target.
struct Part {
    V weight;
    int target;
};

__device__ __forceinline__ int first_part(float value) { return __float_as_int(value); }
__device__ __forceinline__ int first_part(double value) { return int(__double_as_longlong(value)); }

__device__ __forceinline__ bool goes(const Node& n, V x)
{
    bool taken = false;
    switch (Packing::mode(n)) {
    case LEQ: taken = x <= n.value; break;
    case LT: taken = x < n.value; break;
    case GTE: taken = x >= n.value; break;
    case GT: taken = x > n.value; break;
    case EQ: taken = x == n.value; break;
    case NEQ: taken = x != n.value; break;
    }
    return taken || (MISSING && x != x && Packing::missing(n));
}

// sums: [slices, targets, rows].
extern "C" __global__ void __launch_bounds__(THREADS)
walk(const X* __restrict__ x, const Node* __restrict__ nodes, const int* __restrict__ roots,
     const Part* __restrict__ parts, A* sums, int rows, int columns, int trees, int targets, int share)
{
    extern __shared__ A memory[];
    V* const staged = (V*)memory;
    const int own = threadIdx.x % ROWS, first_row = blockIdx.x * ROWS, row = first_row + own;
    const int slice = blockIdx.y * (THREADS / ROWS) + threadIdx.x / ROWS;
    grid_dependency_sync();
    x += (long long)first_row * columns;
    if (STAGED) {
        const int count = min(ROWS, rows - first_row) * columns;
        for (int i = threadIdx.x; i < count; i += THREADS) staged[i % columns * ROWS + i / columns] = V(x[i]);
        __syncthreads();
    }
    const bool is_row = row < rows;
    const X* const features = x + (is_row ? (long long)own * columns : 0);
    const auto feature = [&](int column) { return STAGED ? staged[column * ROWS + own] : V(features[column]); };

    A* const result = sums + (long long)slice * targets * rows + row;
    A* const kept = KEPT ? memory + (STAGED ? (ROWS * columns * sizeof(V) + 7) / sizeof(A) : 0) + threadIdx.x : result;
    const long long pitch = KEPT ? THREADS : rows;
    A total = neutral();
    if (!SINGLE && (KEPT || is_row))
        for (int t = 0; t < targets; ++t) kept[t * pitch] = neutral();

    const int first = slice * share, last = min(first + share, trees);
    for (int tree = first; tree < last; tree += FLIGHT) {
        Node node[FLIGHT];
        int root[FLIGHT];
        bool going = false;
#pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            root[f] = roots[min(tree + f, last - 1)];
            node[f] = nodes[root[f]];
            going = going || !Packing::is_leaf(node[f]);
        }
        while (going) {
            going = false;
            V value[FLIGHT];
#pragma unroll
            for (int f = 0; f < FLIGHT; ++f)
                value[f] = feature(Packing::is_leaf(node[f]) ? 0 : Packing::feature(node[f]));
#pragma unroll
            for (int f = 0; f < FLIGHT; ++f)
                if (!Packing::is_leaf(node[f]))
                    node[f] = nodes[Packing::next(node[f], root[f], goes(node[f], value[f]))];
#pragma unroll
            for (int f = 0; f < FLIGHT; ++f) going = going || !Packing::is_leaf(node[f]);
        }
#pragma unroll
        for (int f = 0; f < FLIGHT; ++f) {
            if (tree + f >= last) break;
            if (SINGLE) {
                total = added(total, node[f].value);
                continue;
            }
            int at = first_part(node[f].value);
            if (at < 0 || !(KEPT || is_row)) continue;
            for (bool more = true; more; ++at) {
                const Part part = parts[at];
                more = part.target >= 0;
                A& sum = kept[(more ? part.target : ~part.target) * pitch];
                sum = added(sum, part.weight);
            }
        }
    }
    if (!is_row) return;
    if (SINGLE) *result = total;
    if (!SINGLE && KEPT)
        for (int t = 0; t < targets; ++t) result[(long long)t * rows] = kept[t * pitch];
}
