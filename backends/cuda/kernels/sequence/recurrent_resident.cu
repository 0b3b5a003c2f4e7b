// Recurrent layers whose weights lie in the shared memory of many blocks, all steps in one launch, for states too large for the
// blocks of a cluster. The products of inputs and gate weights are computed beforehand: `shares` [gate][hidden] of each row and
// direction. A group of BLOCKS blocks, each with UNITS units, has CHUNKS times ROWS sequences of a direction. After a step of a
// chunk, a block stores its units' states in memory, where those that multiply them wait until they are there: with several
// chunks, the states of one arrive while others are multiplied.
//
// There are places for the states before four steps. When a block has all of a step, all blocks have read those of the step before
// it, whose place it clears for the states three steps later: until others look there, they have seen what it stores after that.
//
// The weights of a block are LINES rows [gate][unit], as left operands (m16n8k16, m16n8k8) in the order in which lanes read them.
// K_WARPS slices of the state are multiplied side by side, each by M_WARPS warps, which share the rows; their sums are added up
// through shared memory. The states that a thread computes stay in float32, those that are multiplied have the type of the
// tensors; float32 is multiplied as two tf32 numbers, with the three products that matter.
//
// T is the type of the tensors and of `states`, [place][direction][sequence][WIDTH], which recurrent_resident_begin fills.
// Compile-time: CELL; HIDDEN, all units; BLOCKS, UNITS; ROWS, a multiple of eight; CHUNKS; K_WARPS, M_WARPS; STEPS of 32 bytes of a
// slice, an even number; SUMS, 2 if there is room for those of two steps. Generated: KIND and MMA; and as in cells.cuh.

#include "ptx/cp_async.cuh"
#include "ptx/grid.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/pdl.cuh"
#include "sequence/cells.cuh"

constexpr int THREADS = 32 * K_WARPS * M_WARPS;
constexpr int TILES = (GATES * UNITS + 15) / 16, LINES = 16 * TILES;
constexpr int M_TILES = (TILES + M_WARPS - 1) / M_WARPS, N_TILES = ROWS / 8;  // of a warp
constexpr bool WIDE = sizeof(T) == 4;
constexpr int WORD = 16 / sizeof(T), SLICE = 2 * WORD * STEPS, WIDTH = K_WARPS * SLICE, PITCH = WIDTH + WORD;
constexpr int COLUMNS = (ROWS + 23) / 32 * 32 + 8;  // of the sums: lanes store pairs without conflicts
constexpr int ITEMS = (UNITS * ROWS + THREADS - 1) / THREADS;
constexpr int WORDS = 2 * ROWS * STEPS, OWN_WORDS = (WORDS + 32 * M_WARPS - 1) / (32 * M_WARPS);  // of a slice, and of a lane
constexpr int PLACES = 4, TOGETHER = OWN_WORDS < 16 ? OWN_WORDS : 16;
// Whether a lane waits for its first word before it reads the others, which saves reading all of them in vain.
constexpr bool PROBE = ROWS == 8 && CHUNKS == 1;
constexpr int FLUSH = 4;  // tensor cores truncate their sums, so that few terms of float32 are added there

struct alignas(16) Fragment {
    u32 at[4];
};

// Adjacent weights of a unit from term k, some of which may not exist.
__device__ __forceinline__ Fragment some_weights(const T* row, int k)
{
    Fragment found = {};
    if constexpr (HIDDEN % WORD == 0) {
        if (k < HIDDEN) found = *(const Fragment*)(row + k);
    } else {
        for (int i = 0; i < WORD && k + i < HIDDEN; ++i) ((T*)found.at)[i] = row[k + i];
    }
    return found;
}

// What is left of float32 numbers of which tensor cores read as many bits as tf32 has.
template <int N> __device__ __forceinline__ void rest(const u32 (&x)[N], u32 (&low)[N])
{
#pragma unroll
    for (int i = 0; i < N; ++i)
        low[i] = __float_as_uint(__uint_as_float(x[i]) - __uint_as_float(x[i] & 0xffffe000));
}

// The bits of a state as it is stored, which are all set in no NaN.
template <bool> struct BitsOf { using type = unsigned short; };
template <> struct BitsOf<true> { using type = u32; };
using Bits = BitsOf<WIDE>::type;
__device__ __forceinline__ Bits bits_of(float x)
{
    const T rounded = T(x);
    Bits bits;
    memcpy(&bits, &rounded, sizeof(bits));
    return x != x ? Bits(~0u) >> 1 : bits;
}

// Fills the states before the first step; those after others are not there yet, but for terms that pad a row.
extern "C" __global__ void __launch_bounds__(256)
recurrent_resident_begin(const T* h0, T* states, long long count, Layer l)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    grid_dependency_sync();
    if (i >= count) return;
    const int k = i % WIDTH;
    const long long place = i / WIDTH;
    const int n = place % l.batch, direction = place / l.batch;
    Bits* to = (Bits*)states + i;
    *to = bits_of(h0 && k < HIDDEN ? float(h0[l.state(direction, n) + k]) : 0.0f);
    for (int other = 1; other < PLACES; ++other) to[other * count] = k < HIDDEN ? Bits(~0u) : Bits(0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
recurrent_resident(const float* shares, const T* r, const T* b, const int* lengths, const T* h0, const T* c0, T* y,
                   T* h_end, T* c_end, T* states, Layer l)
{
    // Weights [tile][step][lane], a chunk's state [row][PITCH], sums [odd][slice][line][COLUMNS], states and cells
    // [chunk][item][thread].
    extern __shared__ float4 memory[];
    Fragment* weights = (Fragment*)memory;
    T* state = (T*)(weights + TILES * K_WARPS * STEPS * 32);
    float* sums = (float*)(state + ROWS * PITCH);
    float2* kept = (float2*)(sums + SUMS * K_WARPS * LINES * COLUMNS) + threadIdx.x;

    const int rank = blockIdx.x % BLOCKS, first = blockIdx.x / BLOCKS * (CHUNKS * ROWS), direction = blockIdx.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const int slice = warp / M_WARPS, m_warp = warp % M_WARPS;
    const bool reversed = l.backward || direction == 1;

    for (int i = threadIdx.x; i < LINES * WIDTH / WORD; i += THREADS) {
        const int line = i / (WIDTH / WORD), word = i % (WIDTH / WORD), gate = line / UNITS, j = rank * UNITS + line % UNITS;
        Fragment found = {};
        if (gate < GATES && j < HIDDEN)
            found = some_weights(r + ((long long)(direction * GATES + gate) * HIDDEN + j) * HIDDEN, word * WORD);
        Fragment* to = weights + (line / 16 * K_WARPS * STEPS + word / 2) * 32 + line % 8 * 4;
#pragma unroll
        for (int q = 0; q < 4; ++q) to[q].at[line % 16 / 8 + word % 2 * 2] = found.at[q];
    }

    // A thread computes some units of a chunk's sequences.
    const auto unit_of = [&](int i) { return (threadIdx.x + i * THREADS) % UNITS; };
    const auto row_of = [&](int i) { return (int)(threadIdx.x + i * THREADS) / UNITS; };
    const auto sequence_of = [&](int chunk, int i) { return first + chunk * ROWS + row_of(i); };
    const auto exists = [&](int chunk, int i) {
        return row_of(i) < ROWS && sequence_of(chunk, i) < l.batch && rank * UNITS + unit_of(i) < HIDDEN;
    };
    const auto length_of = [&](int n) { return lengths ? min(lengths[n], l.time) : l.time; };
    float next[ITEMS][GATES];
    Biases biases[ITEMS];
    const auto load_shares = [&](int chunk, int t) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (!exists(chunk, i)) continue;
            const int n = sequence_of(chunk, i);
            const float* from = shares + l.share(direction, n, l.step(t, length_of(n), reversed)) + rank * UNITS + unit_of(i);
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) next[i][gate] = from[gate * HIDDEN];
        }
    };
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = rank * UNITS + unit_of(i);
        biases[i].load(b, l, direction, j, j < HIDDEN);
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            float2 begin = {};
            if (exists(chunk, i)) {
                const long long at = l.state(direction, sequence_of(chunk, i)) + j;
                begin = make_float2(h0 ? float(h0[at]) : 0.0f, c0 ? float(c0[at]) : 0.0f);
            }
            kept[(chunk * ITEMS + i) * THREADS] = begin;
        }
    }
    if (l.time > 0) load_shares(0, 0);
    __syncthreads();

    const long long place = (long long)l.directions * l.batch * WIDTH;  // from the states before a step to those before the next
    Bits* own = (Bits*)states + (direction * (long long)l.batch + first) * WIDTH;
    const auto meet = [&]() {
        if constexpr (M_WARPS == 1) __syncwarp();
        else named_barrier_sync<32 * M_WARPS>(1 + slice);
    };
    // Brings this lane's part of its slice to shared memory, as soon as it is there.
    const auto fetch = [&](int chunk, int t) {
        const Bits* from = own + t % PLACES * place + chunk * ROWS * WIDTH + slice * SLICE;
        const int rows = l.batch - first - chunk * ROWS;
#pragma unroll
        for (int begin = 0; begin < OWN_WORDS; begin += TOGETHER) {
            GridWord words[TOGETHER] = {};
            const auto word_of = [&](int q) { return m_warp * 32 + lane + (begin + q) * 32 * M_WARPS; };
            const auto load = [&](int q) {
                const int i = word_of(q), n = i / (STEPS * 2);
                if (i < WORDS && n < rows) words[q] = shared_word(from + n * WIDTH + i % (STEPS * 2) * WORD);
            };
            if constexpr (PROBE) {
                load(0);
                while (!are_there<sizeof(T)>(words[0])) {
                    let_others_go_on();
                    load(0);
                }
            }
#pragma unroll
            for (int q = PROBE; q < TOGETHER; ++q) load(q);
            for (bool missing = true; missing;) {
                missing = false;
#pragma unroll
                for (int q = 0; q < TOGETHER; ++q)
                    if (!are_there<sizeof(T)>(words[q])) {
                        load(q);
                        missing = true;
                    }
                if (missing) let_others_go_on();
            }
#pragma unroll
            for (int q = 0; q < TOGETHER; ++q) {
                const int i = word_of(q);
                if (i < WORDS) *(GridWord*)(state + i / (STEPS * 2) * PITCH + slice * SLICE + i % (STEPS * 2) * WORD) = words[q];
            }
        }
        grid_fence();
    };

    if (l.time > 0) fetch(0, 0);
    for (int turn = 0; turn < l.time * CHUNKS; ++turn) {
        const int t = turn / CHUNKS, chunk = turn % CHUNKS, next_t = (turn + 1) / CHUNKS, next_chunk = (turn + 1) % CHUNKS;
        const bool is_last = turn + 1 == l.time * CHUNKS;
        meet();

        float found[M_TILES][N_TILES][4] = {};
        float high[WIDE ? M_TILES : 1][WIDE ? N_TILES : 1][4] = {}, low[WIDE ? M_TILES : 1][WIDE ? N_TILES : 1][4] = {};
        const u32 at = shared_address(state + lane % 8 * PITCH + slice * SLICE + lane / 8 * WORD);
        const Fragment* left = weights + (m_warp * M_TILES * K_WARPS + slice) * STEPS * 32 + lane;
#pragma unroll
        for (int step = 0; step < STEPS; step += 2) {
            Fragment a[M_TILES][2], a_low[M_TILES][2];
#pragma unroll
            for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    const int tile = min(m, TILES - 1 - m_warp * M_TILES);
                    a[m][q] = left[(tile * K_WARPS * STEPS + step + q) * 32];
                    if (WIDE) rest(a[m][q].at, a_low[m][q].at);
                }
#pragma unroll
            for (int tile = 0; tile < N_TILES; ++tile) {
                u32 x[4], x_low[4];
                ldmatrix_x4(x, at + (tile * 8 * PITCH + step * 2 * WORD) * sizeof(T));
                if (WIDE) rest(x, x_low);
#pragma unroll
                for (int m = 0; m < M_TILES; ++m)
#pragma unroll
                    for (int q = 0; q < 2; ++q) {
                        if constexpr (WIDE) {
                            MMA(high[m][tile], a[m][q].at, x[2 * q], x[2 * q + 1]);
                            MMA(low[m][tile], a[m][q].at, x_low[2 * q], x_low[2 * q + 1]);
                            MMA(low[m][tile], a_low[m][q].at, x[2 * q], x[2 * q + 1]);
                        } else
                            MMA(found[m][tile], a[m][q].at, x[2 * q], x[2 * q + 1]);
                    }
            }
            if constexpr (WIDE) {
                if ((step + 2) % FLUSH && step + 2 < STEPS) continue;
#pragma unroll
                for (int i = 0; i < M_TILES * N_TILES * 4; ++i) {
                    const int m = i / 4 / N_TILES, tile = i / 4 % N_TILES;
                    found[m][tile][i % 4] += high[m][tile][i % 4] + low[m][tile][i % 4];
                    high[m][tile][i % 4] = low[m][tile][i % 4] = 0;
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
            if (m_warp * M_TILES + m >= TILES) continue;
            float* to = sums + ((turn % SUMS * K_WARPS + slice) * LINES + (m_warp * M_TILES + m) * 16 + row) * COLUMNS + column;
#pragma unroll
            for (int tile = 0; tile < N_TILES; ++tile) {
                *(float2*)(to + tile * 8) = make_float2(found[m][tile][0], found[m][tile][1]);
                *(float2*)(to + 8 * COLUMNS + tile * 8) = make_float2(found[m][tile][2], found[m][tile][3]);
            }
        }
        __syncthreads();

        if (CHUNKS > 2 && !is_last) fetch(next_chunk, next_t);  // stored a while ago
        Bits* later = own + chunk * ROWS * WIDTH + rank * UNITS;
        float results[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (!exists(chunk, i)) continue;
            const int u = unit_of(i), n = row_of(i);
            float2& unit = kept[(chunk * ITEMS + i) * THREADS];
            float totals[GATES], cell = unit.y;
#pragma unroll
            for (int gate = 0; gate < GATES; ++gate) {
                totals[gate] = 0;
#pragma unroll
                for (int k = 0; k < K_WARPS; ++k) totals[gate] += sums[((turn % SUMS * K_WARPS + k) * LINES + gate * UNITS + u) * COLUMNS + n];
            }
            const float result = next_state(direction, next[i], totals, biases[i], unit.x, cell);
            const bool alive = t < length_of(sequence_of(chunk, i));
            if (alive) unit = make_float2(result, cell);
            share(later + (t + 1) % PLACES * place + n * WIDTH + u, bits_of(unit.x));
            share(later + (t + 3) % PLACES * place + n * WIDTH + u, Bits(~0u));
            results[i] = alive ? result : 0.0f;
        }
        if constexpr (SUMS == 1) __syncthreads();
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (!y || !exists(chunk, i)) continue;
            const int n = sequence_of(chunk, i);
            y[l.result(direction, n, l.step(t, length_of(n), reversed)) + rank * UNITS + unit_of(i)] = T(results[i]);
        }
        if (!is_last) load_shares(next_chunk, next_t);
        if (CHUNKS <= 2 && !is_last) fetch(next_chunk, next_t);
    }

    for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (!exists(chunk, i)) continue;
            const long long at = l.state(direction, sequence_of(chunk, i)) + rank * UNITS + unit_of(i);
            const float2 unit = kept[(chunk * ITEMS + i) * THREADS];
            if (h_end) h_end[at] = T(unit.x);
            if (CELL == LSTM && c_end) c_end[at] = T(unit.y);
        }
}
