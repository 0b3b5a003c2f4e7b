// Pairs of an index and its place, sorted by index, and by place where indices are equal: which updates go to which
// row of a tensor. Indices beyond int32 name no row; they become its limits.
//
// Each block has a part of the values from the least index to the greatest, and lists the indices in it: all at once, or
// of so many values that the list has room for them. One value needs no list, as its indices are in order.
//
// Compile-time: WARPS of a block; ROOM, the pairs of a list.

#include "move/sorted_pairs.cuh"
#include "ptx/pdl.cuh"
#include "reduce/block.cuh"
#include "reduce/scan.cuh"

struct Least {
    __device__ __forceinline__ int operator()(int a, int b) const { return a < b ? a : b; }
};

struct Greatest {
    __device__ __forceinline__ int operator()(int a, int b) const { return a > b ? a : b; }
};

__device__ __forceinline__ int key_of(long long index)
{
    const long long limit = 2147483647;
    return int(index > limit ? limit : index < -limit ? -limit : index);
}

// Passes the pairs whose indices are in a range on to `take`, with their numbers in the order of places.
template <typename Take>
__device__ __forceinline__ void for_each_from(const long long* x, int count, long long first, long long end, Take take)
{
    int number = 0;
    for (int base = 0; base < count; base += THREADS) {
        const int i = base + threadIdx.x;
        const int key = i < count ? key_of(x[i]) : 0;
        const bool is_in = i < count && key >= first && key < end;
        const int at = up_to(int(is_in), number, Plus());
        if (is_in) take(Pair{key, i}, at);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) sort_rows(const long long* x, long long* y, int count)
{
    __shared__ Pair list[ROOM];
    Pair* pairs = (Pair*)y;
    grid_dependency_sync();
    int least = 2147483647, greatest = -2147483647;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        least = min(least, key_of(x[i]));
        greatest = max(greatest, key_of(x[i]));
    }
    least = over_block<true>(least, Least());
    greatest = over_block(greatest, Greatest());
    const long long values = (long long)greatest - least + 1, share = (values + gridDim.x - 1) / gridDim.x;
    long long begin = least + share * blockIdx.x;
    const long long last = min(begin + share, (long long)greatest + 1);
    if (begin >= last) return;
    int before = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) before += key_of(x[i]) < begin;
    before = over_block(before, Plus());
    for (long long end = last; begin < last;) {
        int own = 0;
        for (int i = threadIdx.x; i < count; i += THREADS) own += key_of(x[i]) >= begin && key_of(x[i]) < end;
        own = over_block(own, Plus());
        if (own > ROOM && end > begin + 1) {
            end = begin + (end - begin) / 2;
            continue;
        }
        if (own > ROOM) {
            for_each_from(x, count, begin, end, [&](Pair pair, int at) { pairs[before + at] = pair; });
        } else {
            for_each_from(x, count, begin, end, [&](Pair pair, int at) { list[at] = pair; });
            for (int i = threadIdx.x; i < own; i += THREADS) {
                const Pair pair = list[i];
                int rank = 0;
                for (int other = 0; other < own; ++other)
                    rank += list[other].index < pair.index || (list[other].index == pair.index && other < i);
                pairs[before + rank] = pair;
            }
            __syncthreads();
        }
        before += own;
        begin = end;
        end = last;
    }
}
