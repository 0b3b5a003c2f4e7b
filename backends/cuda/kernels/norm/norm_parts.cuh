// Groups of elements that one block processes, or several share: the range of a block, and the loads of its
// threads. I is the type of positions.
//
// Compile-time: WARPS of a block; VECTOR, adjacent elements per load; BATCH, the loads of a thread that are
// in flight together.

constexpr int STEP = 32 * WARPS * VECTOR;  // elements from one word of a thread to the next

struct Parts {  // of a group: how many, and of how many elements each but the last is
    I count, chunk;
};

struct Part {  // elements `first` to `last` of a group
    I group, number, first, last;
};

// Returns the range of a block; `count` is the number of elements of a group.
__device__ __forceinline__ Part part_of(I block, const Parts& parts, I count)
{
    const I group = block / parts.count, number = block - group * parts.count;
    const I first = number * parts.chunk;
    return {group, number, first, first + min(parts.chunk, count - first)};
}

template <typename V> struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

// Reads the words of a thread from element `at` on, and returns how many precede `last`; `place` maps an
// element to its position.
template <typename V, typename Place>
__device__ __forceinline__ int read(Words<V> (&batch)[BATCH], const V* x, I at, I last, Place place)
{
    const int words = (int)min((last - at + STEP - 1) / STEP, I(BATCH));
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
        if (k < words) batch[k] = *(const Words<V>*)(x + place(at + k * STEP));
    return words;
}
