// Running totals along an axis, which may only be known at run time. One thread a line. T is the
// type of the elements, A the arithmetic. Generated: combine(a, b), and START, which changes
// nothing.

struct Ints {
    long long at[RANK];
};

extern "C" __global__ void __launch_bounds__(256)
accumulate(const T* x, const I* axis, T* y, long long size, int known, Ints sizes)
{
    int along = axis ? int(*axis) : known;
    along += along < 0 ? RANK : 0;
    if (along < 0 || along >= RANK || size == 0) return;
    long long inner = 1;
    for (int a = along + 1; a < RANK; ++a) inner *= sizes.at[a];
    const long long length = sizes.at[along];
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= size / length) return;
    const long long first = i / inner * inner * length + i % inner;
    A total = START;
    for (long long k = 0; k < length; ++k) {
        const long long at = first + (REVERSE ? length - 1 - k : k) * inner;
        const A value = A(x[at]);
        if (EXCLUSIVE) y[at] = T(total);
        total = combine(total, value);
        if (!EXCLUSIVE) y[at] = T(total);
    }
}
