// Sums (or extremes) of possibly no terms. A is the type. Compile-time: HOW; COVERED, whether there is always at
// least one term.

#pragma once

enum { AVERAGE, SUM, MIN, MAX };

// Marks that nothing has been added yet: a NaN with a reserved payload.
constexpr long long NOTHING = 0x7ff8dead00000000;
__device__ __forceinline__ bool is_nothing(A sum) { return !COVERED && __double_as_longlong(sum) == NOTHING; }
__device__ __forceinline__ A neutral()
{
    return !COVERED ? A(__longlong_as_double(NOTHING)) : HOW == MIN ? A(INFINITY) : HOW == MAX ? -A(INFINITY) : A(0);
}

__device__ __forceinline__ A added(A sum, A weight)
{
    if (is_nothing(sum)) return weight;
    if (HOW == MIN) return weight < sum ? weight : sum;
    if (HOW == MAX) return weight > sum ? weight : sum;
    return sum + weight;
}
