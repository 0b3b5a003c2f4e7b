// Updates written to the positions that a tensor of indices gives, or combined with the elements there.
// Updates of the same element are applied in order, because one thread owns the element.
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
