// Slices of `inner` elements combined with those of y that coordinates name, in the order of the updates, as
// scatter_nd in scatter.cu does, but many of them. With COPIES, y is a copy of x first, unless it is x itself.
//
// A block has every gridDim.x-th slice of y, of which it computes COLUMNS * 32 elements. It looks through the
// coordinates of all updates, and lists those of its own slices in their order; when the list may get full, and at the
// end, each of its warps applies the updates of some of these slices.
//
// T is the type of the elements, A that of the arithmetic, I that of the coordinates. Generated: combine(a, b), of
// the current element and an update. Negative coordinates count from the end; those out of range are not written.
//
// Compile-time: WARPS of a block; ITEMS, the coordinates of a thread at a time; ROOM, the updates in a list; COLUMNS,
// the elements of a slice of a lane; RANK, the coordinates of a slice; COPIES.

#include "ptx/pdl.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int AHEAD = 4;                          // updates that are read at a time
constexpr int AT_ONCE = THREADS * ITEMS;          // coordinates that a block reads at a time
static_assert(AT_ONCE <= ROOM, "all of these may be listed");

struct Ints {  // one number an axis, outermost first
    Index at[RANK];
};

struct Update {
    Index row, slice;
};

// Returns which slice of y coordinates name, -1 for none.
__device__ __forceinline__ Index slice_of(const I* coordinates, const Ints& sizes)
{
    Index slice = 0;
    bool inside = true;
#pragma unroll
    for (int a = 0; a < RANK; ++a) {
        const long long given = coordinates[a], at = given < 0 ? given + sizes.at[a] : given;
        inside = inside && at >= 0 && at < sizes.at[a];
        slice = slice * sizes.at[a] + Index(at);
    }
    return inside ? slice : Index(-1);
}

extern "C" __global__ void __launch_bounds__(THREADS)
scatter_slices(const I* indices, const T* updates, const T* x, T* y, Index rows, Index slices, Index inner, Ints sizes)
{
    __shared__ Update list[ROOM];
    __shared__ int numbers[2][WARPS];  // of updates that each warp lists, every other time
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Index column = blockIdx.y * (Index)(32 * COLUMNS) + lane, blocks = gridDim.x;
    Index current = -1;  // the slice whose elements this warp has in registers
    A values[COLUMNS] = {};
    const auto store = [&] {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
            if (current >= 0 && column + c * 32 < inner) y[current * inner + column + c * 32] = T(values[c]);
    };
    const auto apply = [&](Index slice, const T (&by)[COLUMNS]) {
        if (slice != current) {
            store();
            current = slice;
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c)
                if (column + c * 32 < inner) values[c] = A(y[current * inner + column + c * 32]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) values[c] = combine(values[c], A(by[c]));
    };
    const auto apply_listed = [&](int count) {
        for (int begin = 0; begin < count; begin += 32) {
            const Update found = begin + lane < count ? list[begin + lane] : Update{0, -1};
            unsigned left = __ballot_sync(~0u, found.slice >= 0 && found.slice / blocks % WARPS == warp);
            while (left) {
                Index slice[AHEAD];
                T by[AHEAD][COLUMNS] = {};
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const int from = left ? __ffs(left) - 1 : 0;
                    const Index row = __shfl_sync(~0u, found.row, from);
                    slice[i] = __shfl_sync(~0u, found.slice, from);
                    if (left == 0) slice[i] = -1;
                    left &= left - 1;
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c)
                        if (slice[i] >= 0 && column + c * 32 < inner)
                            by[i][c] = updates[row * inner + column + c * 32];
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i)
                    if (slice[i] >= 0) apply(slice[i], by[i]);
            }
        }
    };
    const auto read = [&](Index (&found)[ITEMS], Index first) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            const Index row = first + k * 32;
            found[k] = row < rows ? slice_of(indices + row * RANK, sizes) : Index(-1);
        }
    };
    grid_dependency_sync();
    Index first = warp * ITEMS * 32 + lane;  // those of a warp are adjacent
    Index named[ITEMS], next[ITEMS];
    read(named, first);
    if (COPIES && x != y) {
        const Index begin = blockIdx.y * (Index)(32 * COLUMNS), own = min(inner - begin, (Index)(32 * COLUMNS));
        const Index count = (slices - blockIdx.x + blocks - 1) / blocks * own;
        for (Index i = threadIdx.x; i < count; i += THREADS) {
            const Index at = (blockIdx.x + i / own * blocks) * inner + begin + i % own;
            y[at] = x[at];
        }
        __syncthreads();
    }
    int count = 0, half = 0;
    for (Index base = 0; base < rows; base += AT_ONCE, first += AT_ONCE, half ^= 1) {
        unsigned own[ITEMS];
        int number = 0;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            own[k] = __ballot_sync(~0u, named[k] >= 0 && named[k] % blocks == blockIdx.x);
            number += __popc(own[k]);
        }
        if (lane == 0) numbers[half][warp] = number;
        read(next, first + AT_ONCE);  // these arrive while the others are listed
        __syncthreads();
        int at = count;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) {
            at += other < warp ? numbers[half][other] : 0;
            count += numbers[half][other];
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            if (own[k] >> lane & 1) list[at + __popc(own[k] & ((1u << lane) - 1))] = {Index(first + k * 32), named[k]};
            at += __popc(own[k]);
            named[k] = next[k];
        }
        if (count + AT_ONCE > ROOM || base + AT_ONCE >= rows) {
            __syncthreads();
            apply_listed(count);
            __syncthreads();
            count = 0;
        }
    }
    store();
}
