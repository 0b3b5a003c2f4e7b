// Updates written to the positions that a tensor of indices gives, or combined with the elements there.
// Updates of the same element are applied in order, because one thread owns the element, or atomically where their order
// does not matter.
//
// T is the type of the elements, A that of the arithmetic, I that of the indices. Generated: combine(a,
// b), of the current element and an update. Negative indices count from the end; out-of-range ones are
// not written.

#include "ptx/pdl.cuh"

struct Ints {  // one number an axis, outermost first
    Index at[RANK];
};

__device__ __forceinline__ Index place(I index, Index size)
{
    const long long i = index < I(0) ? (long long)index + size : (long long)index;
    return i >= 0 && i < size ? Index(i) : Index(-1);
}

__device__ __forceinline__ void update(T* y, T value) { *y = T(combine(A(*y), A(value))); }

constexpr int BATCH = 8;  // updates of a thread that are loaded together

// One thread per line along `axis`, of `length` updates, or several, each of which applies those of its own positions.
// `sizes` is the shape of the updates, `strides` are those of y, `size` is the size of y along the axis.
extern "C" __global__ void __launch_bounds__(256)
scatter_elements(const I* indices, const T* updates, T* y, Index count, Index lines, Index length, Index size,
                 Index axis, Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index share = i / lines, shares = count / lines;
    Index rest = i - share * lines, from = 0, to = 0, own = 1, step = 1;
#pragma unroll
    for (int a = RANK - 1; a >= 0; --a) {
        if (a == axis) {
            step = own;
        } else {
            const Index next = rest / sizes.at[a], at = rest - next * sizes.at[a];
            from += at * own;
            to += at * strides.at[a];
            rest = next;
        }
        own *= sizes.at[a];
    }
    grid_dependency_sync();
    for (Index first = 0; first < length; first += BATCH) {
        Index at[BATCH];
        T more[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
            at[k] = first + k < length ? place(indices[from + (first + k) * step], size) : -1;
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            if (shares > 1 && at[k] % shares != share) at[k] = -1;
            if (at[k] >= 0) more[k] = updates[from + (first + k) * step];
        }
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
            if (at[k] >= 0) update(y + to + at[k] * strides.at[axis], more[k]);
    }
}

template <int BYTES> struct AtomicWord { typedef unsigned int type; };
template <> struct AtomicWord<8> { typedef unsigned long long type; };

// Combines an element with a value where other threads may do so, too; in any order, so `combine` must not depend on it.
// Elements of less than four bytes are in a word with others.
__device__ __forceinline__ void update_atomically(T* y, T value)
{
    typedef typename AtomicWord<sizeof(T)>::type Word;
    Word* const word = (Word*)((size_t)y & ~(sizeof(Word) - 1));
    const int shift = int((size_t)y % sizeof(Word)) * 8;
    const Word mask = sizeof(T) == sizeof(Word) ? ~Word(0) : ((Word(1) << sizeof(T) * 8 % (sizeof(Word) * 8)) - 1) << shift;
    for (Word old = *(volatile Word*)word;;) {
        const Word part = (old & mask) >> shift;
        T there;
        memcpy(&there, &part, sizeof(T));
        const T made = T(combine(A(there), A(value)));
        Word bits = 0;
        memcpy(&bits, &made, sizeof(T));
        const Word next = (old & ~mask) | bits << shift;
        if (next == old) return;
        const Word seen = atomicCAS(word, old, next);
        if (seen == old) return;
        old = seen;
    }
}

// One thread per update, of which the order does not matter.
extern "C" __global__ void __launch_bounds__(256)
scatter_unordered(const I* indices, const T* updates, T* y, Index count, Index size, Index axis, Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    Index rest = i, to = 0;
#pragma unroll
    for (int a = RANK - 1; a >= 0; --a) {
        const Index next = rest / sizes.at[a];
        if (a != axis) to += (rest - next * sizes.at[a]) * strides.at[a];
        rest = next;
    }
    grid_dependency_sync();
    const Index at = place(indices[i], size);
    if (at >= 0) update_atomically(y + to + at * strides.at[axis], updates[i]);
}

// Slices of `inner` elements, whose RANK coordinates are in a row of `indices`. The threads of one
// element of a slice share the positions: each looks at all updates and applies its own.
extern "C" __global__ void __launch_bounds__(256)
scatter_nd(const I* indices, const T* updates, T* y, Index count, Index rows, Index inner,
           Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index share = i / inner, shares = count / inner, element = i - share * inner;
    grid_dependency_sync();
    for (Index row = 0; row < rows; ++row) {
        Index to = 0;
        bool inside = true;
#pragma unroll
        for (int a = 0; a < RANK; ++a) {
            const Index at = place(indices[row * RANK + a], sizes.at[a]);
            inside = inside && at >= 0;
            to += at * strides.at[a];
        }
        if (inside && to / inner % shares == share)
            update(y + to + element, updates[row * inner + element]);
    }
}

// Writes elements of `updates` to the flat indices that MaxPool returned for a tensor of shape `sizes`;
// elements outside of `limits`, the shape of y, are skipped.
extern "C" __global__ void __launch_bounds__(256)
unpool(const I* indices, const T* updates, T* y, Index count, Ints sizes, Ints limits, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    Index rest = Index(indices[i]), to = 0;
    bool inside = rest >= 0;
#pragma unroll
    for (int a = RANK - 1; a >= 0; --a) {
        const Index next = a ? rest / sizes.at[a] : 0, at = rest - next * sizes.at[a];
        inside = inside && at < limits.at[a];
        to += at * strides.at[a];
        rest = next;
    }
    if (inside) y[to] = updates[i];
}
