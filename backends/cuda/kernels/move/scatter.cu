// Updates written to the places that a tensor of indices names, or combined with what is there.
// Where several updates meet, they are applied in their order: a thread owns the place.
//
// T is the type of the elements, A the arithmetic, I the type of the indices. Generated: combine(a,
// b), of what is there and an update. Negative indices count from the end; what lies outside is
// not written.

struct Ints {  // one number an axis, outermost first
    Index at[RANK];
};

__device__ __forceinline__ Index place(I index, Index size)
{
    const long long i = index < I(0) ? (long long)index + size : (long long)index;
    return i >= 0 && i < size ? Index(i) : Index(-1);
}

__device__ __forceinline__ void update(T* y, T value) { *y = combine(*y, value); }

// One thread a line along `axis`, of `length` updates. `sizes` are those of the updates, `strides`
// those of y, `size` is y's along the axis.
extern "C" __global__ void __launch_bounds__(256)
scatter_elements(const I* indices, const T* updates, T* y, Index count, Index length, Index size,
                 Index axis, Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    Index rest = i, from = 0, to = 0, own = 1, step = 1;
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
    for (Index k = 0; k < length; ++k) {
        const Index at = place(indices[from + k * step], size);
        if (at >= 0) update(y + to + at * strides.at[axis], updates[from + k * step]);
    }
}

// Slices of `inner` elements, whose RANK coordinates are in a row of `indices`. The threads of one
// element of a slice share the places: each looks at all updates and applies its own.
extern "C" __global__ void __launch_bounds__(256)
scatter_nd(const I* indices, const T* updates, T* y, Index count, Index rows, Index inner,
           Ints sizes, Ints strides)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index share = i / inner, shares = count / inner, element = i - share * inner;
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

// Elements of `updates` at the flat positions that MaxPool reported in a tensor of `sizes`; what
// lies outside of `limits`, the sizes of y, is left out.
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
