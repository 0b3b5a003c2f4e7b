// Shuffles between the threads of a warp, for any type.
template <typename V> __device__ __forceinline__ V shuffle_xor(V value, int other)
{
    static_assert(sizeof(V) % 4 == 0, "whole words");
    unsigned words[sizeof(V) / 4];
    memcpy(words, &value, sizeof(V));
#pragma unroll
    for (int i = 0; i < int(sizeof(V) / 4); ++i) words[i] = __shfl_xor_sync(~0u, words[i], other);
    memcpy(&value, words, sizeof(V));
    return value;
}
