// Elements of a line with their places, so that no two are equal: the greatest entry comes first; of equal elements,
// the one with the lower place.

#pragma once

#include "reduce/sort_keys.cuh"

// The key of an element and the complement of its place: 64 bits, or two numbers.
struct Pair {
    Key key;
    unsigned rank;
};
template <int SIZE> struct Entries;
template <> struct Entries<4> { using Entry = unsigned long long; };
template <> struct Entries<8> { using Entry = Pair; };
using Entry = Entries<sizeof(Key)>::Entry;

template <typename E> __device__ __forceinline__ E entry(Key key, int at)
{
    if constexpr (sizeof(Key) == 4) return (unsigned long long)key << 32 | ~(unsigned)at;
    else return {key, ~(unsigned)at};
}

__device__ __forceinline__ bool comes_first(unsigned long long a, unsigned long long b) { return a > b; }
__device__ __forceinline__ bool comes_first(const Pair& a, const Pair& b)
{
    return a.key > b.key || (a.key == b.key && a.rank > b.rank);
}

__device__ __forceinline__ int place_of(unsigned long long entry) { return int(~(unsigned)entry); }
__device__ __forceinline__ int place_of(const Pair& entry) { return int(~entry.rank); }
