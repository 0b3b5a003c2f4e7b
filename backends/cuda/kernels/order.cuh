// The order in which blocks take the items of a kernel: tiles of its result, or as many threads as a block has.
//
// Compile-time: BACKWARDS, whether from the last one to the first: of what the kernel before has stored, only the end is still
// in the L2 cache, which what this one stores would displace. See runtime/plan/turns.py.

// Item `i` of `count` in this order.
__device__ __forceinline__ int in_order(int i, int count) { return BACKWARDS ? count - 1 - i : i; }
