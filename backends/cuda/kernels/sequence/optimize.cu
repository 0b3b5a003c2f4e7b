// One step of an optimizer for one tensor. One thread per element. T is the type of tensors, gradients
// and states, R that of the learning rate, I that of the step count, A that of the arithmetic.

enum { ADAGRAD, ADAM, MOMENTUM, NESTEROV };

struct Factors {
    double alpha, beta, epsilon, decay, norm, norm_post;
};

// `first` and `second` are the states: sums of squares (ADAGRAD); averages of gradients, and of their
// squares (ADAM). Unused results are null.
extern "C" __global__ void __launch_bounds__(256)
optimize(const R* rate, const I* step, const T* x, const T* gradient, const T* first,
         const T* second, T* y, T* new_first, T* new_second, long long count, Factors by)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const A old = A(x[i]), g = A(by.norm) * old + A(gradient[i]), r = A(*rate);
    const double t = double(*step);
    A result, a, b = 0;
    if (KIND == ADAGRAD) {
        a = A(first[i]) + g * g;
        result = old - r / A(1 + t * by.decay) * g / (sqrt(a) + A(by.epsilon));
    } else if (KIND == ADAM) {
        const double correct = t ? sqrt(1 - pow(by.beta, t)) / (1 - pow(by.alpha, t)) : 1.0;
        a = A(by.alpha) * A(first[i]) + A(1 - by.alpha) * g;
        b = A(by.beta) * A(second[i]) + A(1 - by.beta) * g * g;
        result = A(1 - by.norm_post) * (old - r * A(correct) * a / (sqrt(b) + A(by.epsilon)));
    } else {
        a = A(by.alpha) * A(first[i]) + (t > 0 ? A(by.beta) : A(1)) * g;
        result = old - r * (KIND == NESTEROV ? g + A(by.alpha) * a : a);
    }
    if (y) y[i] = T(result);
    if (new_first) new_first[i] = T(a);
    if (new_second) new_second[i] = T(b);
}
