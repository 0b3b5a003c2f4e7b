// y, in its memory order, = x[offset + sum of position * stride], like copy_strided, but through tiles in shared
// memory, so that adjacent elements of x are read together, and adjacent ones of y are written together. T is an
// unsigned integer of the elements' size.
//
// Compile-time: TILE_OF, the sizes of a tile of COUNT elements; INNER_OF, its strides; NEXT_OF, its axes by their
// strides in x, the smallest first; RUN_Y, elements that are adjacent in y; LOAD and STORE, elements of words of x
// and y; PITCH, elements of the tile in shared memory from one run of y to the next.

#include "ptx/pdl.cuh"
#include "move/axes.cuh"

constexpr int THREADS = 256;
constexpr int BANK = STORE * sizeof(T) % 4 ? 1 : sizeof(T) < 4 ? 4 / sizeof(T) : 1;

template <int N> struct alignas(sizeof(T) * N) Words {
    T at[N];
};

// A place in the shared memory, by its number in the order of y.
__device__ __forceinline__ int shared_place(int number) { return number / RUN_Y * PITCH + number % RUN_Y; }

extern "C" __global__ void __launch_bounds__(THREADS)
copy_tiles(const T* x, T* y, Index offset, Ints sizes, Ints tiles, Ints factors, Ints shifts, Ints strides, Ints places)
{
    constexpr int TILE[] = TILE_OF, INNER[] = INNER_OF, NEXT[] = NEXT_OF;
    __shared__ __align__(8) T tile[COUNT / RUN_Y * PITCH];
    int room[RANK];
    x += offset;
    for_each_axis(blockIdx.x, tiles, factors, shifts, [&](int axis, Index position) {
        const Index first = position * TILE[axis];
        x += (long long)first * strides.at[axis];
        y += (long long)first * places.at[axis];
        room[axis] = sizes.at[axis] - first;
    });
    grid_dependency_sync();
    for (int word = threadIdx.x; word < COUNT / LOAD; word += THREADS) {
        int number = word * LOAD;
        Index from = 0;
        bool inside = true;
#pragma unroll
        for (int k = 0; k < RANK; ++k) {
            const int at = number % TILE[NEXT[k]];
            from += (Index)at * strides.at[NEXT[k]];
            inside = inside && at < room[NEXT[k]];
            number /= TILE[NEXT[k]];
        }
        if (!inside) continue;
        const auto words = *(const Words<LOAD>*)(x + from);
#pragma unroll
        for (int e = 0; e < LOAD; ++e) {
            int left = word * LOAD + e, to = 0;
#pragma unroll
            for (int k = 0; k < RANK; ++k) {
                to += left % TILE[NEXT[k]] * INNER[NEXT[k]];
                left /= TILE[NEXT[k]];
            }
            tile[shared_place(to)] = words.at[e];
        }
    }
    __syncthreads();
    for (int word = threadIdx.x; word < COUNT / STORE; word += THREADS) {
        int number = word * STORE;
        Index to = 0;
        bool inside = true;
#pragma unroll
        for (int axis = RANK - 1; axis >= 0; --axis) {
            const int at = number % TILE[axis];
            to += (Index)at * places.at[axis];
            inside = inside && at < room[axis];
            number /= TILE[axis];
        }
        if (!inside) continue;
        Words<STORE> words;
#pragma unroll
        for (int e = 0; e < STORE; e += BANK)
            *(Words<BANK>*)(words.at + e) = *(const Words<BANK>*)(tile + shared_place(word * STORE) + e);
        *(Words<STORE>*)(y + to) = words;
    }
}
