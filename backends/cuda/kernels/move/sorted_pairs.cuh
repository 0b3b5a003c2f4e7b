// An index and its place, as sort_rows.cu and rank_rows.cu write them.

#pragma once

struct alignas(8) Pair {
    int index, place;
};

// Indices beyond int32 become its limits.
constexpr long long LIMIT = 2147483647;

__device__ __forceinline__ int key_of(long long index)
{
    return int(index > LIMIT ? LIMIT : index < -LIMIT ? -LIMIT : index);
}
