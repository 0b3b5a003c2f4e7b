// Pairs of an index and its place, sorted by index, and by place where indices are equal: which updates go to which
// row of a tensor. Indices beyond int32 name no row; they become its limits.
//
// For many indices; rank_rows.cu is for few. Each block has a part of the values, of which those of some indices tell
// the limits, and lists the indices in it: all at once, in any order, or of so many values that the list has room for
// them. One value needs no list, as its indices are in order.
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

constexpr int ITEMS = 4, SAMPLES = 1024;  // indices of a thread at a time; those that are looked at for the limits

// Passes the pairs whose indices are in a range on to `take`, with their numbers in the order of places.
template <typename Take>
__device__ __forceinline__ void for_each_from(const long long* x, int count, long long first, long long end, Take take)
{
    int number = 0;
    for (int base = 0; base < count; base += THREADS * ITEMS) {
        const int i = base + threadIdx.x * ITEMS;
        int keys[ITEMS], own = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            keys[j] = i + j < count ? key_of(x[i + j]) : 0;
            own += i + j < count && keys[j] >= first && keys[j] < end;
        }
        int at = up_to(own, number, Plus());
#pragma unroll
        for (int j = 0; j < ITEMS; ++j)
            if (i + j < count && keys[j] >= first && keys[j] < end) take(Pair{keys[j], i + j}, at++);
    }
    __syncthreads();
}

// Writes pairs in order.
__device__ __forceinline__ void write_sorted(const Pair* list, int count, Pair* to)
{
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const Pair own = list[i];
        int rank = 0;
        for (int j = 0; j < count; ++j) {
            const Pair other = list[j];
            rank += other.index < own.index || (other.index == own.index && other.place < own.place);
        }
        to[rank] = own;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sort_rows(const long long* x, long long* y, int count)
{
    __shared__ Pair list[ROOM];
    __shared__ int listed;
    Pair* pairs = (Pair*)y;
    grid_dependency_sync();
    int least = LIMIT, greatest = -LIMIT;
    for (int i = threadIdx.x; i < min(count, SAMPLES); i += THREADS) {
        const int key = key_of(x[i * (long long)count / min(count, SAMPLES)]);
        least = min(least, key);
        greatest = max(greatest, key);
    }
    least = over_block<true>(least, Least());
    greatest = over_block(greatest, Greatest());
    const long long values = (long long)greatest - least + 1, share = (values + gridDim.x - 1) / gridDim.x;
    const bool is_known = count <= SAMPLES, is_first = blockIdx.x == 0, is_last = blockIdx.x == gridDim.x - 1;
    const long long whole_end = (long long)greatest + 1, own_begin = min(least + share * blockIdx.x, whole_end);
    const long long own_end = min(own_begin + share, whole_end);
    long long begin = is_first && !is_known ? -LIMIT : own_begin;
    const long long last = is_last && !is_known ? LIMIT + 1 : own_end;
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    const int offset = (long long)count * blockIdx.x / gridDim.x;  // blocks read different indices at a time
    int before = 0;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int place = i < count - offset ? i + offset : i + offset - count, key = key_of(x[place]);
        before += key < begin;
        if (key < begin || key >= last) continue;
        const int at = atomicAdd(&listed, 1);
        if (at < ROOM) list[at] = Pair{key, place};
    }
    before = over_block(before, Plus());
    if (listed <= ROOM) {
        write_sorted(list, listed, pairs + before);
        return;
    }
    __syncthreads();
    for (long long end = begin < own_begin ? own_begin : own_end; begin < last;) {
        int own = 0, less = 0;
        for (int i = threadIdx.x; i < count; i += THREADS) {
            const int key = key_of(x[i]);
            less += key < begin;
            own += key >= begin && key < end;
        }
        own = over_block(own, Plus());
        before = over_block(less, Plus());
        if (own > ROOM && end > begin + 1) {
            end = begin + (end - begin) / 2;
            continue;
        }
        if (own > ROOM) {
            for_each_from(x, count, begin, end, [&](Pair pair, int at) { pairs[before + at] = pair; });
        } else if (own) {
            for_each_from(x, count, begin, end, [&](Pair pair, int at) { list[at] = pair; });
            write_sorted(list, own, pairs + before);
            __syncthreads();
        }
        begin = end;
        end = begin < own_end ? own_end : last;
    }
}
