// Squeeze-and-excite: two products of the means of an image, each with its epilogue, and the image multiplied by the
// results, or these alone.
//
// The blocks of a cluster share the weights: each computes a part of the hidden row, which it sends to all of them, and
// then the factors of its channels, by which it multiplies them in its pixels. Weights come to shared memory while the
// kernel in front still runs.
//
// Compile-time: T; PARTS, whose sums make up a mean; SHARED, whether threads share these, as they are many; CHANNELS,
// terms of the first product; HIDDEN, of the second one; RESULTS; CLUSTER, blocks that share the weights; ROWS of the
// first product and OWN results of each block; WORDS of the image for each thread, 0 without an image; FIRST_BIAS,
// BIAS. Generated: squeeze::epilogue, epilogue, and scaled(x, factor), an element of the result.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cluster.cuh"
#include "ptx/load.cuh"

constexpr int WARPS = THREADS / 32, EACH = 16 / sizeof(T);  // elements of a word
constexpr int TERM_WORDS = CHANNELS / EACH, HIDDEN_WORDS = (HIDDEN + EACH - 1) / EACH;
constexpr int OF_LANE = (TERM_WORDS + 31) / 32, PADDED = HIDDEN_WORDS * EACH;
// Threads that share four adjacent means, whose parts are SHARED if they are many.
constexpr int FOURS = CHANNELS / 4, GATHERED = FOURS < THREADS ? THREADS / FOURS : 1;
constexpr int LANES = HIDDEN_WORDS > 4 ? 8 : HIDDEN_WORDS > 2 ? 4 : HIDDEN_WORDS;  // that share a result

// Requests rows of weights, `count` words that are adjacent.
__device__ __forceinline__ void request(T* to, const T* from, int count)
{
    for (int i = threadIdx.x; i < count; i += THREADS)
        cp_async<EACH>(shared_address(to + i * EACH), from + i * EACH, true);
}

// Adds the products of EACH weights and terms.
__device__ __forceinline__ float dot(const T* weights, const float* terms)
{
    const Word found = *(const Word*)weights;
    float sum = 0;
#pragma unroll
    for (int q = 0; q < EACH; ++q) sum += float(((const T*)found.at)[q]) * terms[q];
    return sum;
}

// EACH means of the image.
struct Means {
    float at[EACH];

    // Adds up the parts of adjacent means, a few of them.
    __device__ __forceinline__ void read(const float* from, bool inside)
    {
#pragma unroll
        for (int q = 0; q < EACH; ++q) at[q] = 0;
#pragma unroll
        for (int part = 0; part < (SHARED ? 0 : PARTS); ++part)
#pragma unroll
            for (int q = 0; q < EACH; q += 4) {
                const Word found = global_word(from + part * CHANNELS + q, inside);
#pragma unroll
                for (int r = 0; r < 4; ++r) at[q + r] += __uint_as_float(found.at[r]);
            }
    }

    // The same of sums that the threads of this block have left in shared memory.
    __device__ __forceinline__ void take(const float* from)
    {
#pragma unroll
        for (int part = 0; part < GATHERED; ++part)
#pragma unroll
            for (int q = 0; q < EACH; q += 4) {
                const float4 found = *(const float4*)(from + part * CHANNELS + q);
                at[q] += found.x, at[q + 1] += found.y, at[q + 2] += found.z, at[q + 3] += found.w;
            }
    }

    // Makes them means, rounded as they would be if they were stored.
    __device__ __forceinline__ void finish(float share)
    {
#pragma unroll
        for (int q = 0; q < EACH; ++q) at[q] = float(T(at[q] * share));
    }
};

// Adds up many parts of means: GATHERED threads share those of four adjacent ones.
__device__ __forceinline__ void gather(float* to, const float* from)
{
    for (int i = threadIdx.x; i < GATHERED * FOURS; i += THREADS) {
        const int first = i / FOURS, at = i % FOURS * 4;
        float4 sum = {};
#pragma unroll 8
        for (int part = first; part < PARTS; part += GATHERED) {
            const Word found = global_word(from + part * CHANNELS + at);
            sum.x += __uint_as_float(found.at[0]), sum.y += __uint_as_float(found.at[1]);
            sum.z += __uint_as_float(found.at[2]), sum.w += __uint_as_float(found.at[3]);
        }
        *(float4*)(to + first * CHANNELS + at) = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
excite(const float* means, const T* first, const T* first_bias, const T* second, const T* bias, const T* x, T* y,
       float share_of_mean, int pixels, int of_block, int row_x, int row_y)
{
    extern __shared__ __align__(16) unsigned char memory[];
    float* hidden = (float*)(memory + 16);
    float* biases = hidden + PADDED;
    T* factors = (T*)(biases + (ROWS + OWN + 3) / 4 * 4);
    T* rows = factors + OWN;
    T* rows_behind = rows + ROWS * CHANNELS;
    float* const gathered = (float*)(rows_behind + OWN * PADDED);  // if parts are SHARED
    const u32 barrier = shared_address(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x;
    const int row = rank * ROWS, of_row = min(ROWS, HIDDEN - row);          // may be negative
    const int channel = rank * OWN, own = min(OWN, RESULTS - channel);
    request(rows, first + (long long)row * CHANNELS, of_row * TERM_WORDS);
    request(rows_behind, second + (long long)channel * PADDED, own * HIDDEN_WORDS);
    cp_async_commit();
    for (int i = threadIdx.x; i < ROWS + OWN; i += THREADS) {
        float found = 0;
        if (FIRST_BIAS && i < of_row) found = float(first_bias[row + i]);
        if (BIAS && i >= ROWS && i - ROWS < own) found = float(bias[channel + i - ROWS]);
        biases[i] = found;
    }
    if (PADDED > HIDDEN && threadIdx.x < PADDED - HIDDEN) hidden[HIDDEN + threadIdx.x] = 0;
    if constexpr (CLUSTER > 1) {
        dsmem_expect(barrier, HIDDEN * 4);
        cluster_arrive_relaxed();
    }
    grid_dependency_sync();

    constexpr int ACROSS = OWN / EACH;
    const int begin = blockIdx.y * of_block, count = min(of_block, pixels - begin);
    const long long pixel = (long long)blockIdx.z * pixels + begin;
    Word image[WORDS > 0 ? WORDS : 1];
    if constexpr (WORDS > 0) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const int item = threadIdx.x + w * THREADS, at = item / ACROSS, part = item % ACROSS * EACH;
            image[w] = global_word(x + (pixel + at) * row_x + channel + part, at < count && part < own);
        }
    }
    Means terms[OF_LANE];
    const float* const own_means = means + (long long)blockIdx.z * PARTS * CHANNELS;
#pragma unroll
    for (int w = 0; w < OF_LANE; ++w) {
        const int word = lane + 32 * w;
        terms[w].read(own_means + word * EACH, word < TERM_WORDS);
    }
    if constexpr (SHARED) gather(gathered, own_means);
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int w = 0; w < OF_LANE; ++w) {
        const int word = lane + 32 * w;
        if (SHARED && word < TERM_WORDS) terms[w].take(gathered + word * EACH);
        terms[w].finish(share_of_mean);
    }
    if constexpr (CLUSTER > 1) cluster_wait();
    for (int r = warp; r < of_row; r += WARPS) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < OF_LANE; ++w) {
            const int word = lane + 32 * w;
            if (word < TERM_WORDS) sum += dot(rows + r * CHANNELS + word * EACH, terms[w].at);
        }
#pragma unroll
        for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        const float value = float(squeeze::epilogue(sum + biases[r], row + r, 0, row + r, nullptr, nullptr));
        if constexpr (CLUSTER > 1) {
            if (lane < CLUSTER) dsmem_send(shared_address(hidden + row + r), barrier, lane, value);
        } else {
            if (lane == 0) hidden[row + r] = value;
        }
    }
    if constexpr (CLUSTER > 1) dsmem_wait(barrier);
    else __syncthreads();

    const int share = threadIdx.x % LANES;
    for (int first_of = 0; first_of < OWN; first_of += THREADS / LANES) {
        const int c = first_of + threadIdx.x / LANES;
        float sum = 0;
        if (c < own)
            for (int word = share; word < HIDDEN_WORDS; word += LANES)
                sum += dot(rows_behind + c * PADDED + word * EACH, hidden + word * EACH);
#pragma unroll
        for (int other = LANES / 2; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (share == 0 && c < own) {
            const T factor = epilogue(sum + biases[ROWS + c], channel + c, 0, channel + c, nullptr, nullptr);
            if constexpr (WORDS > 0) factors[c] = factor;
            else y[(long long)blockIdx.z * RESULTS + channel + c] = factor;
        }
    }
    if constexpr (WORDS > 0) {
        __syncthreads();
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const int item = threadIdx.x + w * THREADS, at = item / ACROSS, part = item % ACROSS * EACH;
            if (at >= count || part >= own) continue;
            Word result;
#pragma unroll
            for (int q = 0; q < EACH; ++q)
                ((T*)result.at)[q] = scaled(((const T*)image[w].at)[q], factors[part + q]);
            *(Word*)(y + (pixel + at) * row_y + channel + part) = result;
        }
    }
}
