// y = the sum over some axes of the product of any number of tensors (einsum). A thread computes
// one result, and divides only once for each run of the last axis. T is the type of the elements, A
// the arithmetic.
//
// Compile-time: RANK, the number of the axes of y; SUMMED, of those that are summed over.
// Generated: OPERANDS(X), which is X(0) X(1) ... for all tensors.

struct Ints {
    long long at[RANK];
};

struct Sums {
    long long at[SUMMED];
};

#define PARAMETER(i) , const T *x##i, Ints strides##i, Sums steps##i
#define OFFSET(i) long long offset##i = 0;
#define MOVE(i) offset##i += position * strides##i.at[axis];
#define START(i) long long from##i = offset##i;
#define STEP(i) from##i += position * steps##i.at[axis];
#define ADVANCE(i) from##i += steps##i.at[SUMMED - 1];
#define TIMES(i) term *= A(x##i[from##i]);

extern "C" __global__ void __launch_bounds__(256)
contract(T* y, long long count, long long terms, Ints sizes, Sums summed OPERANDS(PARAMETER))
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    OPERANDS(OFFSET)
    long long rest = i;
#pragma unroll
    for (int axis = RANK - 1; axis >= 0; --axis) {
        const long long position = rest % sizes.at[axis];
        OPERANDS(MOVE)
        rest /= sizes.at[axis];
    }
    A sum = 0;
    const long long run = summed.at[SUMMED - 1];
    for (long long k = 0; k < terms; k += run) {
        OPERANDS(START)
        rest = k / run;
#pragma unroll
        for (int axis = SUMMED - 2; axis >= 0; --axis) {
            const long long position = rest % summed.at[axis];
            OPERANDS(STEP)
            rest /= summed.at[axis];
        }
        for (long long place = 0; place < run; ++place) {
            A term = 1;
            OPERANDS(TIMES)
            sum += term;
            OPERANDS(ADVANCE)
        }
    }
    y[i] = T(sum);
}
