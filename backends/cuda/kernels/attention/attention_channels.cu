// Attention of the channels of a head to one another (cross-covariance attention), on tensor cores, with sums and
// exponentials in float32: y[n, i] = sum over j of softmax over j(factor * s[i, j]) v[n, j], with
// s[i, j] = sum over pixels n of q[n, i] k[n, j]. Channels are adjacent. If UNIT, channels of q and k are divided by
// their lengths, or by `floor` if that is greater.
//
// A cluster of blocks computes a head of an image. Each block adds up its part of the pixels; when they have exchanged
// their sums, each applies the weights to its part of the values.
//
// Compile-time: T of all tensors; SIZE, the channels of a head rounded up to a multiple of 16; VECTOR, adjacent channels
// per copy (1, 2, 4, 8); PAIRS, whether results are stored in pairs; WARPS; BLOCKS of a cluster; UNIT.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
#include "reduce/block.cuh"

constexpr int PIXELS = 16 * WARPS;  // of a tile
constexpr int PITCH = SIZE + 8;     // eight elements of padding place the pixels of a channel in different banks
constexpr int TILE = PIXELS * PITCH;
constexpr int SQUARES = SIZE * PITCH;                         // where squares of q, then those of k follow the sums
constexpr int COUNT = SQUARES + (UNIT ? 2 * SIZE : 0);        // of a block
constexpr int TILES = 4 * TILE * sizeof(T), PARTS = WARPS * COUNT * 4;  // bytes
constexpr float LOG2E = 1.44269504f;

struct Places {  // distances in elements
    int first, image, head, pixel;
};

__device__ __forceinline__ float over_quad(float value)
{
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

template <typename Combine> __device__ __forceinline__ float over_eight(float value, Combine combine)
{
#pragma unroll
    for (int other = 4; other; other /= 2)
        value = combine(value, __shfl_xor_sync(~0u, value, other));
    return value;
}

__device__ __forceinline__ float square_of(u32 pair)
{
    T two[2];
    memcpy(two, &pair, 4);
    const float a = float(two[0]), b = float(two[1]);
    return a * a + b * b;
}

// Copies the pixels of a tile that exist, and zeros for others.
__device__ __forceinline__ void load(T* tile, const T* from, int first, int end, int size, int step)
{
    constexpr int PER_PIXEL = SIZE / VECTOR;
    for (int item = threadIdx.x; item < PIXELS * PER_PIXEL; item += THREADS) {
        const int pixel = item / PER_PIXEL, channel = item % PER_PIXEL * VECTOR;
        const bool inside = first + pixel < end && channel < size;
        T* const to = tile + pixel * PITCH + channel;
        const T* const source = from + (inside ? (long long)(first + pixel) * step + channel : 0);
        if constexpr (VECTOR == 1) *to = inside ? *source : T(0.0f);
        else cp_async<VECTOR>(shared_address(to), source, inside);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_channels(const T* q, const T* k, const T* v, const float* factors, T* y, Places of_q, Places of_k,
                   Places of_v, Places of_y, int pixels, int size, int chunk, float floor)
{
    extern __shared__ __align__(16) unsigned char shared[];
    T* const tiles = (T*)shared;          // two of queries and keys, later the sums of each warp
    float* const parts = (float*)shared;
    T* const values = (T*)(shared + (TILES > PARTS ? TILES : PARTS));  // two tiles
    float* const total = (float*)(values + 2 * TILE);
    T* const weights = (T*)(total + COUNT);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int head = blockIdx.x / BLOCKS, image = blockIdx.y;
    const int begin = blockIdx.x % BLOCKS * chunk, end = min(begin + chunk, pixels);
    const int steps = max(0, (end - begin + PIXELS - 1) / PIXELS);
    q += of_q.first + (long long)image * of_q.image + (long long)head * of_q.head;
    k += of_k.first + (long long)image * of_k.image + (long long)head * of_k.head;
    v += of_v.first + (long long)image * of_v.image + (long long)head * of_v.head;
    y += of_y.first + (long long)image * of_y.image + (long long)head * of_y.head;
    const auto load_pair = [&](int step) {
        T* const to = tiles + step % 2 * 2 * TILE;
        load(to, q, begin + step * PIXELS, end, size, of_q.pixel);
        load(to + TILE, k, begin + step * PIXELS, end, size, of_k.pixel);
    };
    const auto load_values = [&](int step) {
        load(values + step % 2 * TILE, v, begin + step * PIXELS, end, size, of_v.pixel);
    };

    grid_dependency_sync();
    if (steps > 0) load_pair(0);
    cp_async_commit();
    if (steps > 1) load_pair(1);
    if (steps > 0) load_values(0);
    if (steps > 1) load_values(1);
    cp_async_commit();

    float sums[SIZE / 16][SIZE / 8][4] = {}, of_queries[SIZE / 16][2] = {}, of_keys[SIZE / 8] = {};
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<1>();
        __syncthreads();
        const T* const queries = tiles + step % 2 * 2 * TILE + warp * 16 * PITCH;
        const T* const keys = queries + TILE;
        u32 a[SIZE / 16][4];
#pragma unroll
        for (int i = 0; i < SIZE / 16; ++i) {
            const int pixel = lane % 8 + lane / 16 * 8;
            ldmatrix_x4_trans(a[i], shared_address(queries + pixel * PITCH + i * 16 + lane / 8 % 2 * 8));
            if (UNIT)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    of_queries[i][half] += square_of(a[i][half]) + square_of(a[i][half + 2]);
        }
#pragma unroll
        for (int j = 0; j < SIZE / 16; ++j) {
            u32 b[4];
            ldmatrix_x4_trans(b, shared_address(keys + lane % 16 * PITCH + j * 16 + lane / 16 * 8));
            if (UNIT)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    of_keys[2 * j + side] += square_of(b[2 * side]) + square_of(b[2 * side + 1]);
#pragma unroll
            for (int i = 0; i < SIZE / 16; ++i) {
                mma_m16n8k16(sums[i][2 * j], a[i], b[0], b[1]);
                mma_m16n8k16(sums[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
        __syncthreads();
        if (step + 2 < steps) load_pair(step + 2);
        cp_async_commit();
    }

    float* const own = parts + warp * COUNT;
#pragma unroll
    for (int i = 0; i < SIZE / 16; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = i * 16 + half * 8 + lane / 4;
#pragma unroll
            for (int j = 0; j < SIZE / 8; ++j)
                *(float2*)(own + row * PITCH + j * 8 + lane % 4 * 2) =
                    make_float2(sums[i][j][2 * half], sums[i][j][2 * half + 1]);
            const float squares = UNIT ? over_quad(of_queries[i][half]) : 0;
            if (UNIT && lane % 4 == 0) own[SQUARES + row] = squares;
        }
    if (UNIT)
#pragma unroll
        for (int j = 0; j < SIZE / 8; ++j) {
            const float squares = over_quad(of_keys[j]);
            if (lane % 4 == 0) own[SQUARES + SIZE + j * 8 + lane / 4] = squares;
        }
    __syncthreads();
    for (int i = threadIdx.x * 4; i < COUNT; i += THREADS * 4) {
        float4 sum = *(const float4*)(parts + i);
#pragma unroll
        for (int w = 1; w < WARPS; ++w) {
            const float4 more = *(const float4*)(parts + w * COUNT + i);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        *(float4*)(total + i) = sum;
    }
    const float* whole = total;
    if constexpr (BLOCKS > 1) {
        cluster_sync();
        for (int i = threadIdx.x * 4; i < COUNT; i += THREADS * 4) {
            float4 sum = {};
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) {
                const float4 more = dsmem_load(shared_address(total + i), block);
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            *(float4*)(parts + i) = sum;
        }
        whole = parts;
        cluster_arrive();  // the memory of a block is read until here
    }
    __syncthreads();

    // Eight lanes have a row.
    const float factor = factors[head] * LOG2E;
#pragma unroll
    for (int first = 0; first < SIZE; first += THREADS / 8) {
        const int row = first + threadIdx.x / 8;
        if (row >= SIZE) break;
        float scores[SIZE / 8], peak = -INFINITY, sum = 0, scale = factor;
        if (UNIT) scale /= fmaxf(sqrtf(whole[SQUARES + row]), floor);
#pragma unroll
        for (int c = 0; c < SIZE / 8; ++c) {
            const int column = c * 8 + lane % 8;
            scores[c] = whole[row * PITCH + column] * scale;
            if (UNIT) scores[c] /= fmaxf(sqrtf(whole[SQUARES + SIZE + column]), floor);
            if (column >= size) scores[c] = -INFINITY;
            peak = Larger()(peak, scores[c]);
        }
        peak = over_eight(peak, Larger());
#pragma unroll
        for (int c = 0; c < SIZE / 8; ++c) {
            scores[c] = exp2_of(scores[c] - peak);
            sum += scores[c];
        }
        sum = 1 / over_eight(sum, Plus());
#pragma unroll
        for (int c = 0; c < SIZE / 8; ++c) weights[row * PITCH + c * 8 + lane % 8] = T(scores[c] * sum);
    }
    cp_async_wait<0>();
    __syncthreads();

    for (int step = 0; step < steps; ++step) {
        cp_async_wait<1>();
        __syncthreads();
        const T* const tile = values + step % 2 * TILE + warp * 16 * PITCH;
        u32 a[SIZE / 16][4];
#pragma unroll
        for (int c = 0; c < SIZE / 16; ++c)
            ldmatrix_x4(a[c], shared_address(tile + lane % 16 * PITCH + c * 16 + lane / 16 * 8));
        __syncthreads();
        if (step + 2 < steps) load_values(step + 2);
        cp_async_commit();
#pragma unroll
        for (int i = 0; i < SIZE / 16; ++i) {
            float results[2][4] = {};
#pragma unroll
            for (int c = 0; c < SIZE / 16; ++c) {
                u32 b[4];
                const T* const from = weights + (i * 16 + lane % 8 + lane / 16 * 8) * PITCH + c * 16;
                ldmatrix_x4(b, shared_address(from + lane / 8 % 2 * 8));
                mma_m16n8k16(results[0], a[c], b[0], b[1]);
                mma_m16n8k16(results[1], a[c], b[2], b[3]);
            }
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int pixel = begin + step * PIXELS + warp * 16 + part % 2 * 8 + lane / 4;
                const int channel = i * 16 + part / 2 * 8 + lane % 4 * 2;
                const float* const two = results[part / 2] + part % 2 * 2;
                T* const to = y + (long long)pixel * of_y.pixel + channel;
                if (pixel >= end || channel >= size) continue;
                if constexpr (PAIRS) {
                    *(u32*)to = pair_of(two[0], two[1]);
                } else {
                    to[0] = T(two[0]);
                    if (channel + 1 < size) to[1] = T(two[1]);
                }
            }
        }
    }
    if (BLOCKS > 1) cluster_wait();
}
