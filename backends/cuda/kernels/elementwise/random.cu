// Random numbers by counting: Philox 4x32-10 (Salmon et al., 2011) of the position and a key. The
// key is the seed, or the time where there is none. X is the type of inputs, T that of results.

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

__device__ __forceinline__ Words draw(long long i, long long seed)
{
    unsigned long long key = seed;
    if (!SEEDED) asm volatile("mov.u64 %0, %globaltimer;" : "=l"(key));
    return philox(i, key);
}

// A number of [0, 1) of two words.
__device__ __forceinline__ double unit(unsigned high, unsigned low)
{
    return ((unsigned long long)high << 21 ^ low >> 11) * (1.0 / 9007199254740992.0);
}

// UNIFORM: low + u * range; NORMAL: low + z * range; BERNOULLI: 1 with the probability x.
extern "C" __global__ void __launch_bounds__(256)
generate(const X* x, T* y, long long count, long long seed, double low, double range)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const Words w = draw(i, seed);
    const double u = unit(w.at[0], w.at[1]);
    double result = low + u * range;
    if (KIND == NORMAL)
        result = low + range * sqrt(-2.0 * log(1.0 - u)) * cospi(2.0 * unit(w.at[2], w.at[3]));
    if (KIND == BERNOULLI) result = u < double(A(x[i])) ? 1.0 : 0.0;
    y[i] = T(float(result));
}

// Dropout, which may be training or not: *training (null: it is) is only known in a run.
extern "C" __global__ void __launch_bounds__(256)
drop(const X* x, const R* ratio, const bool* training, X* y, bool* mask, long long count,
     long long seed)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i >= count) return;
    const bool trains = !training || *training;
    const double share = ratio ? double(float(*ratio)) : 0.5;
    const Words w = draw(i, seed);
    const bool kept = !trains || unit(w.at[0], w.at[1]) >= share;
    if (y) y[i] = trains ? X(kept ? A(double(A(x[i])) / (1.0 - share)) : A(0)) : x[i];
    if (mask) mask[i] = kept;
}
