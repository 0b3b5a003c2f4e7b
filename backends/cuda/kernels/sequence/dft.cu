// Discrete Fourier transforms by definition: one thread per coefficient. Signals are lines of `size`
// numbers of PARTS parts (1: real, 2: complex), truncated or zero-padded to `length`. T is the type of the
// elements, and R that of the coefficients; angles and sums are double.
//
// Compile-time: INVERSE; HALF, whether the signal is the first half of a symmetric one (an inverse
// transform with real results); OUT_PARTS; WINDOWED, whether elements are multiplied by `window`.

struct Lines {  // the offset of line (outer, frame, inner), and the stride of its numbers
    long long frames, inner, of_outer, of_frame, of_inner, step;
};

extern "C" __global__ void __launch_bounds__(256)
transform(const T* x, const T* window, R* y, long long count, int size, int length,
          int coefficients, Lines l)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const long long in = i % l.inner, row = i / l.inner;
    const int k = row % coefficients;
    const long long line = row / coefficients, frame = line % l.frames, outer = line / l.frames;
    const T* from = x + outer * l.of_outer + frame * l.of_frame + in * l.of_inner;
    double real = 0, imaginary = 0;
    for (int j = 0; j < length; ++j) {
        const int at = HALF && j > length / 2 ? length - j : j;
        if (at >= size) continue;
        double a = double(A(from[at * l.step]));
        double b = PARTS == 2 ? double(A(from[at * l.step + PARTS - 1])) : 0.0;
        if (at != j) b = -b;
        if (WINDOWED) {
            a *= double(A(window[j]));
            b *= double(A(window[j]));
        }
        const double angle = 2.0 * double((long long)k * j % length) / length;
        const double c = cospi(angle), s = INVERSE ? sinpi(angle) : -sinpi(angle);
        real += a * c - b * s;
        imaginary += a * s + b * c;
    }
    const double by = INVERSE ? 1.0 / length : 1.0;
    y[i * OUT_PARTS] = R(A(real * by));
    if (OUT_PARTS == 2) y[i * OUT_PARTS + 1] = R(A(imaginary * by));
}
