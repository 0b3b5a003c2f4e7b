// Slices of a tensor along an axis, one per iteration of a loop. T is an unsigned integer type that
// divides a row of `inner` of them, counter[0] the number of the iteration, Index the type of indices of T.

__device__ __forceinline__ Index place(const int64* counter, Index rounds, int backward)
{
    const Index number = (Index)counter[0];
    return backward ? rounds - 1 - number : number;
}

// y[outer][inner] = x[outer][round][inner]
extern "C" __global__ void __launch_bounds__(256)
take(const T* x, T* y, const int64* counter, Index count, Index rounds, Index inner, int backward)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index outer = i / inner;
    y[i] = x[(outer * rounds + place(counter, rounds, backward)) * inner + i - outer * inner];
}

// y[outer][round][inner] = x[outer][inner]
extern "C" __global__ void __launch_bounds__(256)
put(const T* x, T* y, const int64* counter, Index count, Index rounds, Index inner, int backward)
{
    const Index i = blockIdx.x * (Index)256 + threadIdx.x;
    if (i >= count) return;
    const Index outer = i / inner;
    y[(outer * rounds + place(counter, rounds, backward)) * inner + i - outer * inner] = x[i];
}
