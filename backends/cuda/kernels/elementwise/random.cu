// Counter-based random numbers: Philox 4x32-10 (Salmon et al., 2011) of the position and a key, which is the
// seed, or the time if there is none. Elements 2n and 2n + 1 are computed from the words of counter n, as
// in backends/numpy/numerics/philox.py. X is the type of inputs, T that of results, A that of the arithmetic of X.

enum { UNIFORM, NORMAL, BERNOULLI, DROPOUT };

struct Words {
    unsigned at[4];
};

__device__ __forceinline__ Words philox(unsigned long long counter, unsigned long long key)
{
    Words w = {{unsigned(counter), unsigned(counter >> 32), 0, 0}};
    unsigned k0 = unsigned(key), k1 = unsigned(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const unsigned long long a = 0xD2511F53ull * w.at[0], b = 0xCD9E8D57ull * w.at[2];
        w = {{unsigned(b >> 32) ^ w.at[1] ^ k0, unsigned(b), unsigned(a >> 32) ^ w.at[3] ^ k1,
              unsigned(a)}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return w;
}

// A number in [0, 1) from two words.
__device__ __forceinline__ double unit(unsigned high, unsigned low)
{
    return ((unsigned long long)high << 21 ^ low >> 11) * (1.0 / 9007199254740992.0);
}

// The numbers in [0, 1) of elements 2n and 2n + 1.
struct Pair {
    double at[2];
};
__device__ __forceinline__ Pair draw(long long n, long long seed)
{
    unsigned long long key = seed;
    if (!SEEDED) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(key));
    const Words w = philox(n, key);
    return {{unit(w.at[0], w.at[1]), unit(w.at[2], w.at[3])}};
}

// Without contraction to fused multiply-adds, so that the results equal those of other backends.
__device__ __forceinline__ double scaled(double low, double number, double range)
{
    return __dadd_rn(low, __dmul_rn(number, range));
}
__device__ __forceinline__ void put(double& y, double x) { y = x; }
template <typename Y> __device__ __forceinline__ void put(Y& y, double x) { y = Y(float(x)); }

// UNIFORM: low + u * range; NORMAL: low + z * range; BERNOULLI: 1 with probability x.
extern "C" __global__ void __launch_bounds__(256)
generate(const X* x, T* y, long long count, long long seed, double low, double range)
{
    const long long n = blockIdx.x * 256LL + threadIdx.x;
    if (2 * n >= count) return;
    Pair found = draw(n, seed);
    if (KIND == NORMAL) {
        const double size = sqrt(-2.0 * log(1.0 - found.at[0])), angle = 2.0 * found.at[1];
        found = {{size * cospi(angle), size * sinpi(angle)}};
    }
    for (long long i = 2 * n; i < min(count, 2 * n + 2); ++i) {
        const double u = found.at[i - 2 * n];
        if (KIND == BERNOULLI) put(y[i], u < double(A(x[i])) ? 1.0 : 0.0);
        else put(y[i], scaled(low, u, range));
    }
}

// Classes drawn by log-probabilities, up to a common factor: the first class whose cumulative probability exceeds a
// random number. One block per row; thread i has the classes of the i-th part. x: [rows, classes].
extern "C" __global__ void __launch_bounds__(256)
choose(const X* x, T* y, int classes, int samples, long long seed)
{
    __shared__ double parts[257];
    x += (long long)blockIdx.x * classes;
    const int share = (classes + 255) / 256, first = min(classes, int(threadIdx.x) * share);
    const int last = min(classes, first + share);
    double top = -double(INFINITY);
    for (int i = first; i < last; ++i) top = max(top, double(A(x[i])));
    parts[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < 256; ++i) top = max(top, parts[i]);
    __syncthreads();
    double sum = 0;
    for (int i = first; i < last; ++i) sum += exp(double(A(x[i])) - top);
    parts[threadIdx.x + 1] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        parts[0] = 0;
        for (int i = 1; i <= 256; ++i) parts[i] += parts[i - 1];
    }
    __syncthreads();
    for (int sample = threadIdx.x; sample < samples; sample += 256) {
        const long long at = (long long)blockIdx.x * samples + sample;
        const double limit = draw(at / 2, seed).at[at % 2] * parts[256];
        int part = 0;
        while (part < 255 && parts[part + 1] <= limit) ++part;
        double passed = parts[part];
        int i = min(part * share, classes - 1);
        for (; i < classes - 1; ++i) {
            passed += exp(double(A(x[i])) - top);
            if (passed > limit) break;
        }
        y[at] = T(i);
    }
}

// The value of an element that is kept or dropped.
__device__ __forceinline__ X dropped(X x, bool kept, double share)
{
    return X(A(double(A(x)) * (kept ? 1.0 : 0.0) / (1.0 - share)));
}

// Dropout, which may be in training mode or not: *training (null: it is) is known only at run time.
extern "C" __global__ void __launch_bounds__(256)
drop(const X* x, const R* ratio, const bool* training, X* y, bool* mask, long long count,
     long long seed)
{
    const long long n = blockIdx.x * 256LL + threadIdx.x;
    if (2 * n >= count) return;
    const bool trains = !training || *training;
    const double share = ratio ? double(float(*ratio)) : 0.5;
    const Pair found = draw(n, seed);
    for (long long i = 2 * n; i < min(count, 2 * n + 2); ++i) {
        const bool kept = !trains || found.at[i - 2 * n] >= share;
        if (y) y[i] = trains ? (share < 1 ? dropped(x[i], kept, share) : X(A(0))) : x[i];
        if (mask) mask[i] = kept;
    }
}

// ── MT19937, for Dropout with a seed: one block, which produces 312 numbers at a time ─────────────────────

constexpr int STATE = 624, AHEAD = 397, BEHIND = STATE - AHEAD;

__device__ __forceinline__ unsigned twisted(unsigned own, unsigned next, unsigned far)
{
    const unsigned mixed = (own & 0x80000000u) | (next & 0x7FFFFFFFu);
    return far ^ mixed >> 1 ^ (mixed & 1 ? 0x9908B0DFu : 0u);
}

__device__ __forceinline__ unsigned tempered(unsigned y)
{
    y ^= y >> 11;
    y ^= y << 7 & 0x9D2C5680u;
    y ^= y << 15 & 0xEFC60000u;
    return y ^ y >> 18;
}

// state: the words of numpy's RandomState before its first number.
extern "C" __global__ void __launch_bounds__(256)
drop_seeded(const X* x, const R* ratio, const bool* training, const unsigned* state, X* y, bool* mask,
            long long count)
{
    __shared__ unsigned words[STATE];
    for (int i = threadIdx.x; i < STATE; i += 256) words[i] = state[i];
    const bool trains = !training || *training;
    const double share = ratio ? double(float(*ratio)) : 0.5;
    for (long long first = 0; first < count; first += STATE / 2) {
        for (int begin = 0; begin < STATE; begin += BEHIND) { // words that need none of this round
            __syncthreads();
            const int i = begin + threadIdx.x, end = min(STATE, begin + BEHIND);
            const unsigned word = i < end
                ? twisted(words[i], words[(i + 1) % STATE], words[(i + AHEAD) % STATE]) : 0;
            __syncthreads();
            if (i < end) words[i] = word;
        }
        __syncthreads();
        for (int at = threadIdx.x; at < STATE / 2 && first + at < count; at += 256) {
            const long long i = first + at;
            const unsigned a = tempered(words[2 * at]) >> 5, b = tempered(words[2 * at + 1]) >> 6;
            const bool kept = !trains || (a * 67108864.0 + b) * (1.0 / 9007199254740992.0) >= share;
            if (y) y[i] = trains ? (share < 1 ? dropped(x[i], kept, share) : X(A(0))) : x[i];
            if (mask) mask[i] = kept;
        }
    }
}
