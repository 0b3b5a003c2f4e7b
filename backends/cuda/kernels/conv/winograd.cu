// Winograd convolution in one kernel: transforms tiles of the image into shared memory, multiplies them
// pointwise with the transformed weights, and transforms the sums back. Nothing else is written to memory.
//
// A block computes TILES x FILTERS products at every point, a thread an 8 x 8 part of them at one
// point. Weights, transformed on the host, are packed as [block of filters][step of channels]
// [point][CHANNELS][FILTERS]. Shared memory holds two steps: one in use, one in flight.
//
// Compile-time: OUT; TILES; FILTERS; CHANNELS of a step; RESIDENT, blocks per multiprocessor; BIAS; POOL.

#include "ptx/copy.cuh"
#include "conv/winograd.cuh"

constexpr int PART = 8;
constexpr int PER_POINT = TILES / PART * (FILTERS / PART);  // threads
constexpr int THREADS = POINTS * PER_POINT;
constexpr int PITCH = TILES + 4;  // neighbouring channels begin in different banks
constexpr int INPUTS = POINTS * CHANNELS * PITCH, WEIGHTS = POINTS * CHANNELS * FILTERS;
constexpr int ITEMS = TILES * CHANNELS;  // of a step, each an input tile of one channel
static_assert(ITEMS <= THREADS, "a thread transforms at most one tile a step");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
winograd(const float* x, const float* w, float* y, const float* bias, const float* z0,
         const float* z1, Plane p)
{
    extern __shared__ __align__(16) float shared[];
    const int tile0 = blockIdx.x * TILES, steps = (p.channels + CHANNELS - 1) / CHANNELS;
    w += (long long)blockIdx.y * steps * WEIGHTS;

    const bool loads = threadIdx.x < ITEMS;
    const int channel = threadIdx.x % CHANNELS, own = threadIdx.x / CHANNELS;
    const Tile tile(tile0 + own, p);
    float d[EDGE][EDGE];
    const auto fetch = [&](int step) {
        if (step < steps) {
            float* target = shared + step % 2 * (INPUTS + WEIGHTS) + INPUTS;
            for (int i = threadIdx.x * 4; i < WEIGHTS; i += THREADS * 4)
                cp_async<4>(target + i, w + (long long)step * WEIGHTS + i, true);
            if (loads) read_tile(x, tile, step * CHANNELS + channel, p, d);
        }
        cp_async_commit();
    };
    const auto put = [&](int step) {  // stores the fetched inputs, transformed
        if (step < steps && loads) {
            float* target = shared + step % 2 * (INPUTS + WEIGHTS) + channel * PITCH + own;
            transform_inputs(d);
#pragma unroll
            for (int a = 0; a < POINTS; ++a)
                target[a * CHANNELS * PITCH] = d[a / EDGE][a % EDGE];
        }
    };

    const int point = threadIdx.x / PER_POINT, part = threadIdx.x % PER_POINT;
    const int t0 = part / (FILTERS / PART) * PART, f0 = part % (FILTERS / PART) * PART;
    float sums[PART][PART] = {};
    fetch(0);
    put(0);
    for (int step = 0; step < steps; ++step) {
        cp_async_wait<0>();
        __syncthreads();
        fetch(step + 1);
        const float* a = shared + step % 2 * (INPUTS + WEIGHTS) + point * CHANNELS * PITCH + t0;
        const float* b = shared + step % 2 * (INPUTS + WEIGHTS) + INPUTS
                         + point * CHANNELS * FILTERS + f0;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            float left[PART], right[PART];
#pragma unroll
            for (int i = 0; i < PART; i += 4) {
                *(float4*)(left + i) = *(const float4*)(a + c * PITCH + i);
                *(float4*)(right + i) = *(const float4*)(b + c * FILTERS + i);
            }
#pragma unroll
            for (int j = 0; j < PART; ++j)
#pragma unroll
                for (int i = 0; i < PART; ++i) sums[j][i] += left[j] * right[i];
        }
        put(step + 1);
    }

    __syncthreads();
#pragma unroll
    for (int j = 0; j < PART; ++j)
#pragma unroll
        for (int i = 0; i < PART; ++i)
            shared[(point * TILES + t0 + j) * FILTERS + f0 + i] = sums[j][i];
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * FILTERS; i += THREADS) {
        const int filter = blockIdx.y * FILTERS + i % FILTERS;
        const Tile target(tile0 + i / FILTERS, p);
        if (filter >= p.filters || target.image >= p.images) continue;
        float m[EDGE][EDGE];
#pragma unroll
        for (int a = 0; a < POINTS; ++a) m[a / EDGE][a % EDGE] = shared[a * TILES * FILTERS + i];
        write_tile(m, y, target, filter, bias, z0, z1, p);
    }
}
