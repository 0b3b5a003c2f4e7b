// Computes the scores and the class of a row from its sums. A is the type of the arithmetic. Compile-time: TRANSFORM,
// one of those below; PAIR, how the one sum of a binary classifier is interpreted; FIRST, whether the first class
// has its own score.

#pragma once

// SIGN is for outlier detectors: 1 above 0, else -1.
enum { NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT, SIGN };
// NO_PAIR: one sum per class; MARGIN: the first class has the negated sum; PROBABILITY: it has 1 minus the sum.
enum { NO_PAIR, MARGIN, PROBABILITY };

__device__ __forceinline__ A logistic(A s) { return A(0.5) * tanh(A(0.5) * s) + A(0.5); }

// The inverse of the normal distribution by Winitzki's formula, as onnxruntime has it.
__device__ __forceinline__ A probit(A p)
{
    const A logarithm = log(4 * p * (1 - p));
    const A middle = A(2 / (3.14159265358979323846 * 0.147)) + A(0.5) * logarithm;
    const A size = A(1.41421356237309504880) * sqrt(sqrt(middle * middle - logarithm / A(0.147)) - middle);
    return p < A(0.5) ? -size : size;
}

// exp(s - top), for s of at most `top`; with SOFTMAX_ZERO, scores close to zero yield 0.
__device__ __forceinline__ A power(A s, A top)
{
    return TRANSFORM == SOFTMAX_ZERO && fabs(s) <= A(1e-7) ? A(0) : exp(s - top);
}

// Writes the scores of `count` classes: calls put(t, score) with scores computed from get(t).
template <typename Get, typename Put> __device__ __forceinline__ void transform(int count, Get get, Put put)
{
    if (TRANSFORM != SOFTMAX && TRANSFORM != SOFTMAX_ZERO) {
        for (int t = 0; t < count; ++t) {
            const A s = get(t);
            put(t, TRANSFORM == LOGISTIC ? logistic(s) : TRANSFORM == PROBIT ? probit(s)
                   : TRANSFORM == SIGN   ? (s > 0 ? A(1) : A(-1)) : s);
        }
        return;
    }
    A top = -A(INFINITY), total = 0;
    for (int t = 0; t < count; ++t) top = max(top, A(get(t)));
    for (int t = 0; t < count; ++t) total += power(get(t), top);
    for (int t = 0; t < count; ++t) put(t, total == 0 ? A(0.5) : power(get(t), top) / total);
}

// Writes the scores of two classes, given the sum of the second one, and with FIRST the score of the first one.
template <typename Put> __device__ __forceinline__ void transform_pair(A first, A s, Put put)
{
    const A other = FIRST                                      ? first
                    : PAIR == PROBABILITY && TRANSFORM == NONE ? 1 - s
                    : TRANSFORM == PROBIT                      ? s
                                                               : -s;
    transform(2, [&](int t) { return t ? s : other; }, put);
}
