// Transforms of lines in shared memory: Stockham's algorithm, whose steps multiply the length of transforms by a factor of LENGTH
// each and leave results in order. Signals are lines of `size` numbers of PARTS parts (1: real, 2: complex), truncated or
// zero-padded to LENGTH. A block has LINES of them, which are adjacent; the same number of all of them is adjacent in shared memory.
//
// Types: X, of signals, Y, of results, and A, of the arithmetic. Compile-time: LENGTH; LINES; THREADS; HALF, whether the signal is
// the first half of a symmetric one; OUT_PARTS; WINDOWED, whether elements are multiplied by `window`. Generated: STEPS(X), which
// is X(factor, length so far) of each step.

struct Lines {  // the offset of line (outer, frame, inner), and the stride of its numbers
    long long frames, inner, of_outer, of_frame, of_inner, step;
};

struct Complex {
    A real, imaginary;
};

__device__ __forceinline__ void add_product(Complex& sum, const Complex& a, const Complex& b)
{
    sum.real += a.real * b.real - a.imaginary * b.imaginary;
    sum.imaginary += a.real * b.imaginary + a.imaginary * b.real;
}

__device__ __forceinline__ Complex operator+(const Complex& a, const Complex& b)
{
    return {a.real + b.real, a.imaginary + b.imaginary};
}

__device__ __forceinline__ Complex operator-(const Complex& a, const Complex& b)
{
    return {a.real - b.real, a.imaginary - b.imaginary};
}

__device__ __forceinline__ Complex conjugate(const Complex& a)
{
    return {a.real, -a.imaginary};
}

// Returns the product with the fourth root of unity: -i, or i in an inverse transform.
template <bool BACK> __device__ __forceinline__ Complex quarter(const Complex& a)
{
    return BACK ? Complex{-a.imaginary, a.real} : Complex{a.imaginary, -a.real};
}

// Returns a root of unity, which is the conjugate one in an inverse transform.
template <bool BACK> __device__ __forceinline__ Complex root(const Complex* roots, int at)
{
    return BACK ? conjugate(roots[at]) : roots[at];
}

// Transforms P numbers; `own` are the roots of unity of that order.
template <bool BACK, int P> __device__ __forceinline__ void transform(const Complex (&x)[P], const Complex (&own)[P], Complex (&y)[P])
{
    if constexpr (P == 2) {
        y[0] = x[0] + x[1], y[1] = x[0] - x[1];
    } else if constexpr (P == 4) {
        const Complex a = x[0] + x[2], b = x[0] - x[2], c = x[1] + x[3], d = quarter<BACK>(x[1] - x[3]);
        y[0] = a + c, y[1] = b + d, y[2] = a - c, y[3] = b - d;
    } else {
#pragma unroll
        for (int q = 0; q < P; ++q) {
            y[q] = x[0];
#pragma unroll
            for (int s = 1; s < P; ++s) add_product(y[q], x[s], own[s * q % P]);
        }
    }
}

// Combines P transforms of L numbers each; `roots` are those of unity. A thread computes the P results of as many numbers, or,
// where they are too many for its registers, a result at a time. The same number of all lines is adjacent.
template <bool BACK, int P, int L> __device__ __forceinline__ void combine(const Complex* from, Complex* to, const Complex* roots)
{
    constexpr int APART = LENGTH / P;
    __syncthreads();
    if constexpr (P <= 8) {
        Complex own[P];
#pragma unroll
        for (int s = 0; s < P; ++s) own[s] = root<BACK>(roots, s * APART);
        for (int t = threadIdx.x; t < APART * LINES; t += THREADS) {
            const int i = t / LINES, line = t % LINES, j = i % L;
            Complex rotated[P], found[P];
            rotated[0] = from[t];
#pragma unroll
            for (int s = 1; s < P; ++s) {
                const Complex next = from[t + s * APART * LINES];
                if constexpr (L == 1) {
                    rotated[s] = next;
                } else {
                    rotated[s] = {};
                    add_product(rotated[s], next, root<BACK>(roots, s * j * (APART / L)));
                }
            }
            transform<BACK, P>(rotated, own, found);
#pragma unroll
            for (int q = 0; q < P; ++q) to[((i - j) * P + j + q * L) * LINES + line] = found[q];
        }
    } else {
        for (int t = threadIdx.x; t < LENGTH * LINES; t += THREADS) {
            const int e = t / LINES, line = t % LINES, q = e / APART, i = e % APART, j = i % L, step = (j + q * L) * (APART / L);
            Complex sum = from[i * LINES + line];
            int at = 0;
            for (int s = 1; s < P; ++s) {
                at += step;
                if (at >= LENGTH) at -= LENGTH;
                add_product(sum, from[(i + s * APART) * LINES + line], root<BACK>(roots, at));
            }
            to[((i - j) * P + j + q * L) * LINES + line] = sum;
        }
    }
}

constexpr int AHEAD = 8;  // reads of a thread

// The lines of a block, and its parts of shared memory.
struct Block {
    Complex *from, *to, *roots;
    int first, inner;     // the first line among those that are adjacent, and their number
    long long row, outer; // the number of lines of all rows before, and where signals begin

    __device__ __forceinline__ Block(unsigned char* shared, const Lines& l) : from((Complex*)shared), inner(l.inner)
    {
        to = from + LENGTH * LINES, roots = to + LENGTH * LINES;
        const unsigned frames = l.frames, blocks = (unsigned(inner) + LINES - 1) / LINES;  // no more than blocks
        first = blockIdx.x % blocks * LINES, row = blockIdx.x / blocks;
        outer = unsigned(row) / frames * l.of_outer + unsigned(row) % frames * l.of_frame + first * l.of_inner;
    }

    __device__ __forceinline__ bool has(int line) const { return LINES == 1 || first + line < inner; }

    __device__ __forceinline__ void swap()
    {
        Complex* const other = from;
        from = to, to = other;
    }

    __device__ __forceinline__ void load_roots(const A* unity)
    {
        for (int j = threadIdx.x; j < LENGTH; j += THREADS) roots[j] = {unity[2 * j], unity[2 * j + 1]};
    }

    // Returns number t of the block's lines.
    __device__ __forceinline__ Complex number(const X* x, const X* window, int size, const Lines& l, int t) const
    {
        const int j = t / LINES, line = t % LINES, at = HALF && j > LENGTH / 2 ? LENGTH - j : j;
        Complex value = {};
        if (t < LENGTH * LINES && at < size && has(line)) {
            const X* const parts = x + outer + line * l.of_inner + at * l.step;
            value.real = A(parts[0]);
            if (PARTS == 2) value.imaginary = at == j ? A(parts[PARTS - 1]) : -A(parts[PARTS - 1]);
            if (WINDOWED) value.real *= A(window[j]), value.imaginary *= A(window[j]);
        }
        return value;
    }

    // Several reads are on their way before the first one is stored.
    __device__ __forceinline__ void load(const X* x, const X* window, int size, const Lines& l)
    {
        for (int t = threadIdx.x; t < LENGTH * LINES; t += THREADS * AHEAD) {
            Complex values[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) values[i] = number(x, window, size, l, t + i * THREADS);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i)
                if (t + i * THREADS < LENGTH * LINES) from[t + i * THREADS] = values[i];
        }
    }

    // Leaves the transforms where `from` is.
    template <bool BACK> __device__ __forceinline__ void transform_all()
    {
#define STEP(P, L) combine<BACK, P, L>(from, to, roots), swap();
        STEPS(STEP)
        __syncthreads();
    }

    template <bool BACK> __device__ __forceinline__ void store(Y* y, int coefficients) const
    {
        constexpr A BY = BACK ? A(1) / LENGTH : A(1);
        y += (row * coefficients * inner + first) * OUT_PARTS;
        for (int t = threadIdx.x; t < coefficients * LINES; t += THREADS) {
            const int k = t / LINES, line = t % LINES;
            if (!has(line)) continue;
            Y* const found = y + ((long long)k * inner + line) * OUT_PARTS;
            found[0] = Y(from[t].real * BY);
            if (OUT_PARTS == 2) found[1] = Y(from[t].imaginary * BY);
        }
    }
};
