// Linear attention with relu in place of a softmax: y = relu(q) (relu(k)' v) / (relu(q) sum of relu(k) + epsilon),
// in float32 whatever T is. One block per head of an image: it first accumulates k' v over all pixels, then
// applies the sum to their queries. The channels of x are q, k, v of the first head, then of the next one.
//
// Compile-time: T of x, R of y; SIZE, of a head, in fours; VECTOR, adjacent channels per load.

#include "ptx/pdl.cuh"

constexpr int THREADS = 256, FOURS = SIZE / 4;
constexpr int PIXELS = SIZE < 64 ? 128 : 32;                      // of a tile
constexpr int TEAM = FOURS * FOURS, TEAMS = THREADS / TEAM;       // threads with 4 x 4 sums each; pixels at once
constexpr int PITCH = SIZE + 4;
constexpr int ROOM = PIXELS * 2 * PITCH, SUMS = TEAMS * SIZE * SIZE;

struct Places {  // distances in elements
    int image, channel, pixel;
};

struct alignas(sizeof(T) * VECTOR) Words {
    T at[VECTOR];
};

// Reads SIZE channels of the pixels of a tile, and zeros past the last pixel.
template <bool RECTIFIED>
__device__ __forceinline__ void load(float* to, const T* from, int pixel, int pixels, const Places& by)
{
    constexpr int WORDS = SIZE / VECTOR;
#pragma unroll 4
    for (int i = threadIdx.x; i < PIXELS * WORDS; i += THREADS) {
        const int row = i / WORDS, channel = i % WORDS * VECTOR;
        Words found = {};
        if (pixel + row < pixels)
            found = *(const Words*)(from + (long long)(pixel + row) * by.pixel + channel * by.channel);
#pragma unroll
        for (int q = 0; q < VECTOR; ++q) {
            const float value = float(found.at[q]);
            to[row * PITCH + channel + q] = RECTIFIED && value < 0 ? 0 : value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
relu_linear(const T* x, R* y, int pixels, float epsilon, Places of_x, Places of_y)
{
    __shared__ __align__(16) float memory[ROOM > SUMS ? ROOM : SUMS];
    __shared__ float state[SIZE][SIZE], total[SIZE], totals[TEAMS][SIZE];
    const int head = blockIdx.x, image = blockIdx.y;
    x += (long long)image * of_x.image + (long long)head * 3 * SIZE * of_x.channel;
    y += (long long)image * of_y.image + (long long)head * SIZE * of_y.channel;
    const T *const keys = x + (long long)SIZE * of_x.channel, *const values = keys + (long long)SIZE * of_x.channel;

    // Each team takes one pixel; a thread accumulates the products of four keys and four values.
    const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
    const int row = member / FOURS * 4, column = member % FOURS * 4;
    float sums[4][4] = {}, rows[4] = {};
    grid_dependency_sync();
    for (int pixel = 0; pixel < pixels; pixel += PIXELS) {
        __syncthreads();
        load<true>(memory, keys, pixel, pixels, of_x);
        load<false>(memory + PIXELS * PITCH, values, pixel, pixels, of_x);
        __syncthreads();
#pragma unroll 4
        for (int p = team; p < PIXELS; p += TEAMS) {
            float key[4], value[4];
            *(float4*)key = *(const float4*)(memory + p * PITCH + row);
            *(float4*)value = *(const float4*)(memory + (PIXELS + p) * PITCH + column);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                rows[i] += key[i];
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] += key[i] * value[j];
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        *(float4*)(memory + (team * SIZE + row + i) * SIZE + column) = *(const float4*)sums[i];
        if (column == 0) totals[team][row + i] = rows[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < TEAMS; ++t) sum += memory[t * SIZE * SIZE + i];
        state[i / SIZE][i % SIZE] = sum;
    }
    if (threadIdx.x < SIZE) {
        float sum = 0;
#pragma unroll
        for (int t = 0; t < TEAMS; ++t) sum += totals[t][threadIdx.x];
        total[threadIdx.x] = sum;
    }
    __syncthreads();
    // From here on a thread computes one channel of the result and keeps that column of the state.
    const int channel = threadIdx.x % SIZE;
    float own[SIZE];
#pragma unroll
    for (int k = 0; k < SIZE; ++k) own[k] = state[k][channel];
    for (int pixel = 0; pixel < pixels; pixel += PIXELS) {
        __syncthreads();
        load<true>(memory, x, pixel, pixels, of_x);
        __syncthreads();
        for (int p = threadIdx.x / SIZE; p < PIXELS && pixel + p < pixels; p += THREADS / SIZE) {
            float sum = 0, weight = 0;
#pragma unroll
            for (int k = 0; k < SIZE; k += 4) {
                float query[4];
                *(float4*)query = *(const float4*)(memory + p * PITCH + k);
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    sum += query[q] * own[k + q];
                    weight += query[q] * total[k + q];
                }
            }
            y[(long long)(pixel + p) * of_y.pixel + channel * of_y.channel] = R(sum / (weight + epsilon));
        }
    }
}
