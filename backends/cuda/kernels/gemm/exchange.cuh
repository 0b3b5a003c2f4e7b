// Tensor cores leave a lane two adjacent columns of two rows of sums. Here lanes exchange them, so that each has more
// columns of one row.

#include "ptx/warp.cuh"

// Lanes with even numbers get four adjacent sums of the upper row, others those of the lower one.
__device__ __forceinline__ float4 four_of_row(float2 upper, float2 lower)
{
    const bool odd = threadIdx.x % 2;
    const float2 kept = odd ? lower : upper, found = shuffle_xor(odd ? upper : lower, 1);
    return odd ? make_float4(found.x, found.y, kept.x, kept.y) : make_float4(kept.x, kept.y, found.x, found.y);
}

// Of two tiles of eight columns, the first two lanes of every four get rows of the first one, the others of the second one.
__device__ __forceinline__ void eight_of_row(float (&row)[8], const float2 (&first)[2], const float2 (&second)[2])
{
    const bool later = threadIdx.x % 4 / 2;
    const float4 left = four_of_row(first[0], first[1]), right = four_of_row(second[0], second[1]);
    const float4 kept = later ? right : left, found = shuffle_xor(later ? left : right, 2);
    *(float4*)row = later ? found : kept;
    *(float4*)(row + 4) = later ? kept : found;
}
