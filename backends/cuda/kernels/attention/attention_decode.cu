// A decoder step of few new tokens, from the product that yields queries, keys and values to the result of attention:
// normalizes the heads of queries and new keys if NORMED, by their mean square and a factor per element, rotates them
// (rotate.cuh), writes the new keys and values to the caches
// [batch][kv_heads][room][size], starting at position first[batch] or 0, and attends to the caches (mma_tiles.cuh,
// which lists further compile-time constants). Positions past the end are not written or, if CIRCULAR, wrap around to
// the beginning. Negative positions count from the end.
//
// The earlier contents of the caches, `past_keys` and `past_values`, are the same memory or were copied there by a
// previous kernel. Every block of a key head rotates the new keys itself and substitutes them for what it loaded at
// their positions, so no block waits for the one that writes them.
//
// A step is short and dominated by memory latency. With EARLY, which requires caches that no preceding kernel writes,
// keys and values are loaded while the preceding kernels still run, using lengths that may not be final yet: a thread
// whose lengths turn out to differ loads again. With KNOWN_ANGLES, of constant tables, so are cosines and sines.
//
// Further compile-time constants: NEW, tokens of a sample; HEAD, the size of a head; HALF, the number of rotated pairs
// of a head; INTERLEAVED; VECTOR; CIRCULAR; NORMED; EARLY; PLACED, whether there are positions; KNOWN_ANGLES; OWN_KEYS; PASSING, whether
// keys and values are displaced first in the second cache; INBOX and ROTATED, byte offsets in shared memory. I is the type of `first`.
//
// What blocks do before they wait counts where these start only as the preceding kernel ends: 66 of 128 with 8 sequences.

#include "attention/mma_tiles.cuh"
#include "attention/keys_left.cuh"
#include "attention/rotate.cuh"

// The queries of a warp's rows.
struct RowQueries {
    u32 at[TM][SIZE_K / 16][4];

    __device__ __forceinline__ void load(const T* from)
    {
        const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int c = 0; c < SIZE_K / 16; ++c)
                ldmatrix_x4(at[i][c], shared_address(from + ((warp_m * TM + i) * 16 + lane % 16) * PITCH_K + c * 16
                                                     + lane / 16 * 8));
    }
};

// Sets which rows of a block a thread has; it has `count`.
__device__ __forceinline__ void place_rows(Accumulators& sums, int m0, int count, int first, const Sizes& s)
{
    const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = (warp_m * TM + i) * 16 + half * 8 + lane / 4;
            sums.rows[i][half] = row_of(min(m0 + row, count - 1), first, s);
        }
}

// At most eight rows are the right operands of products, more are the left ones.
template <bool EIGHT> struct OperandsOf {
    using Sums = Accumulators;
    using Queries = RowQueries;
};
template <> struct OperandsOf<true> {
    using Sums = ColumnSums;
    using Queries = ColumnQueries;
};
using Operands = OperandsOf<ROWS == 8>;

struct Angles {  // of tables
    int batches, places;
};

// The positions of a sample's new rows in the caches.
struct Places {
    long long first;
    int room;

    // Returns the position of a row, or -1 if it is not written.
    __device__ __forceinline__ int of(int row) const
    {
        long long at = first + row;
        if (CIRCULAR) at = (at % room + room) % room;
        else if (at < 0) at += room;
        return at < 0 || at >= room ? -1 : int(at);
    }
};

// The rows of a tile that are copied together, by how many threads: a warp copies the keys that it multiplies if no other
// does, so that warps do not wait for each other between tiles.
constexpr int TOGETHER = OWN_KEYS ? KEYS : TILE, COPIERS = OWN_KEYS ? 32 : THREADS;
static_assert(!OWN_KEYS || WARPS_M == 1, "no two warps multiply the same keys");

__device__ __forceinline__ void sync_copiers()
{
    if (OWN_KEYS) __syncwarp();
    else __syncthreads();
}

// Copies TILE rows of a head, and zeros from position `end` on; `from` is the first row of the head.
template <int N, int SIZE> __device__ __forceinline__ void load_rows(T* tile, const T* from, int t0, int end)
{
    constexpr int PER_ROW = SIZE / N;
    const int first = threadIdx.x / COPIERS * TOGETHER, thread = threadIdx.x % COPIERS;
#pragma unroll
    for (int base = 0; base < TOGETHER * PER_ROW; base += COPIERS) {
        const int item = base + thread, row = first + item / PER_ROW, column = item % PER_ROW * N;
        if (TOGETHER * PER_ROW % COPIERS && item >= TOGETHER * PER_ROW) break;
        const bool inside = t0 + row < end && column < HEAD;
        bring<N, PASSING>(tile + row * (SIZE + 8) + column, from + (long long)(t0 + row) * HEAD + column, inside);
    }
}

// Copies a row of SIZE elements within shared memory; each chunk is copied by the thread that `load_rows` assigns it
// to.
template <int N, int SIZE>
__device__ __forceinline__ void replace(T* tile, int row, const T* from)
{
    constexpr int PER_ROW = SIZE / N;
    if (OWN_KEYS && row / TOGETHER != threadIdx.x / COPIERS) return;
    const int ahead = (threadIdx.x % COPIERS + COPIERS - row % TOGETHER * PER_ROW % COPIERS) % COPIERS;
    for (int chunk = ahead; chunk < PER_ROW; chunk += COPIERS)
        *(Elements<N>*)(tile + row * (SIZE + 8) + chunk * N) = *(const Elements<N>*)(from + chunk * N);
}

// The threads of a head.
constexpr int CHUNKS = (HEAD - HALF) / VECTOR;

// Whether the rows of a block's heads are one tile; and the maximum number of parts that its threads copy.
constexpr bool ONE_TILE = GROUP * NEW <= ROWS;
constexpr int MAX_ITEMS = ((ONE_TILE ? GROUP * NEW : ROWS) + 2 * NEW) * CHUNKS;

// A part of a head of a query, a new key or a new value, which a thread copies: its elements, where its head goes in
// shared memory, its first pair, and the entry of its position with its address, or null.
struct Part {
    const T *first, *second;
    T* to;
    int chunk;
    bool is_query, is_rotated;
    long long entry;
    const long long* position;
};

// Returns the position of a part, which may change until the preceding kernel ends.
__device__ __forceinline__ long long place_of(const Part& part)
{
    if constexpr (!PLACED) return part.entry;
    else return *(const volatile long long*)part.position;
}

// Returns pairs of a head divided by the root of its mean square, times the factors of its elements.
__device__ __forceinline__ Pairs normalized(Pairs pairs, const T* factors, float epsilon, int chunk)
{
    float sum = 0;
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        const float a = pairs.a.at[q], b = pairs.b.at[q];  // zeros where there is no first element
        sum += a * a + b * b;
    }
    const u32 threads = (CHUNKS == 32 ? ~0u : (1u << CHUNKS % 32) - 1) << (threadIdx.x % 32 / CHUNKS * CHUNKS);
#pragma unroll
    for (int step = 1; step < CHUNKS; step *= 2) sum += __shfl_xor_sync(threads, sum, step);
    const float inverse = rsqrtf(sum / HEAD + epsilon);
    const Pairs by = pairs_at(factors, chunk, HALF);
#pragma unroll
    for (int q = 0; q < VECTOR; ++q) {
        pairs.a.at[q] = T(float(pairs.a.at[q]) * inverse * float(by.a.at[q]));
        pairs.b.at[q] = T(float(pairs.b.at[q]) * inverse * float(by.b.at[q]));
    }
    return pairs;
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_decode(const T* q, const T* k, const T* v, const T* of_queries, const T* of_keys, float epsilon,
                 const T* cosine, const T* sine, const long long* positions, const I* starts, const T* past_keys,
                 const T* past_values, T* keys, T* values, const M* mask, const long long* lengths, const float* sink, T* y, float* left,
                 float2* beside, Sizes s, Angles angles, Steps of_q, Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap, int tiles)
{
    extern __shared__ __align__(16) unsigned char shared[];
    T* const buffers = (T*)shared;
    float4* const inbox = (float4*)(shared + INBOX);
    T* const rotated = (T*)(shared + ROTATED);
    T* const new_keys = rotated + ROWS * PITCH_K;
    T* const new_values = new_keys + NEW * PITCH_K;
    const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N;
    const int pair = ONE_TILE ? blockIdx.x : blockIdx.x / tiles, tile = ONE_TILE ? 0 : tiles - 1 - blockIdx.x % tiles;
    const int n = pair / s.kv_heads, kv_head = pair % s.kv_heads, first = kv_head * GROUP;
    // Lengths and positions may be anything yet. Nothing waits for either before all that needs neither is done.
    const long long any = EARLY && LENGTHS ? *(const volatile long long*)(lengths + n) : s.total;
    constexpr int rows = GROUP * NEW;
    const int m0 = tile * ROWS;
    s.rows = NEW, s.size_k = s.size_v = HEAD;  // equal at run time, but known to the compiler
    open_inbox(inbox, min(ROWS, rows - m0));

    const long long cache = ((long long)n * s.kv_heads + kv_head) * s.total * HEAD;  // where those of the head begin
    int valid = 0, shift = 0;  // keys that are there, and the position of the first query
    Keys range = {};
    const auto count_keys = [&](int length) {
        valid = length;
        shift = LENGTHS ? valid - NEW : 0;
        range = keys_of_block(m0, ROWS, shift, valid, GRAIN, s, CLUSTER > 0 ? CLUSTER : gridDim.y);
    };
    const auto load_tile = [&](int step) {
        T* const to = buffers + step % STAGES * STAGE;
        const int t0 = range.begin + step * TILE;
        if (t0 < range.end) {
            load_rows<VECTOR_K, SIZE_K>(to, past_keys + cache, t0, range.end);
            load_rows<VECTOR_V, SIZE_V>(to + TILE * PITCH_K, past_values + cache, t0, range.end);
        }
        cp_async_commit();
    };
    const int own = min(ROWS, rows - m0);
    const long long entry = (long long)(n < angles.batches ? n : n % angles.batches) * NEW;  // of the position of the first new token
    const auto part_of = [&](int item) {
        const int line = item / CHUNKS, chunk = item % CHUNKS * VECTOR;
        const Row at = row_of(m0 + line, first, s);
        const int query = line < own ? at.query : (line - own) % NEW;
        const T* const from = line < own ? q + n * of_q.batch + at.head * of_q.head + query * of_q.row
                              : line < own + NEW ? k + n * of_k.batch + kv_head * of_k.head + query * of_k.row
                                                 : v + n * of_v.batch + kv_head * of_v.head + query * of_v.row;
        T* const to = line < own ? rotated + line * PITCH_K
                      : line < own + NEW ? new_keys + query * PITCH_K : new_values + query * PITCH_V;
        return Part{from + first_of(chunk), from + second_of(chunk, HALF), to, chunk, line < own, line < own + NEW,
                    entry + query, positions ? positions + entry + query : nullptr};
    };
    Part part = part_of(threadIdx.x);
    pin(part.first), pin(part.second), pin(part.position);
    long long guess = -1;  // the position that a thread's first item is rotated by
    Rotation guessed = {};
    const bool rotates = EARLY && KNOWN_ANGLES && part.is_rotated;
    if (rotates) guess = place_of(part);
    constexpr int CLEARED = ((ROWS + NEW) * PITCH_K + NEW * PITCH_V) / 8;
#pragma unroll
    for (int base = 0; base < CLEARED; base += THREADS)
        if (base + int(threadIdx.x) < CLEARED) ((Elements<8>*)rotated)[base + threadIdx.x] = Elements<8>{};
    if (EARLY) {
        // All lanes of a warp compute with the same length.
        count_keys(min(max(LENGTHS ? __shfl_sync(~0u, int(any), 0) : s.total, 0), s.total));
#pragma unroll 1
        for (int step = 0; step < STAGES; ++step) load_tile(step);
        if (rotates) guessed = rotation_at(cosine, sine, guess, angles.places, part.chunk, HALF);
    }
    __syncthreads();
    grid_dependency_sync();

    const int found = LENGTHS ? int(*(const volatile long long*)(lengths + n)) : s.total;
    const Places places = {starts ? (long long)starts[n] : 0, s.total};
    if (!EARLY) {
        count_keys(found);
#pragma unroll 1
        for (int step = 0; step < STAGES; ++step) load_tile(step);
    }
    const auto copy_part = [&](const Part& part, bool is_first) {
        // Loads do not wait for each other.
        const long long place = place_of(part);
        Pairs pairs = {};
        if (part.chunk < HALF) pairs.a = words(part.first);
        pairs.b = words(part.second);
        if (!part.is_rotated) return keep_pairs(pairs, part.to, part.chunk, HALF);
        if (!is_first || place != guess) guessed = rotation_at(cosine, sine, place, angles.places, part.chunk, HALF);
        if constexpr (NORMED) pairs = normalized(pairs, part.is_query ? of_queries : of_keys, epsilon, part.chunk);
        rotate_pairs(pairs, part.to, guessed, part.chunk, HALF);
    };
    const int items = (own + 2 * NEW) * CHUNKS;
    if (threadIdx.x < items) copy_part(part, true);
    if constexpr (MAX_ITEMS > THREADS) {
#pragma unroll 1
        for (int item = threadIdx.x + THREADS; item < items; item += THREADS) copy_part(part_of(item), false);
    }
    const bool again = EARLY && found != valid;
    if (again) {
        cp_async_wait<0>();
        count_keys(found);
    }
    __syncthreads();

    for (int row = 0; row < NEW; ++row) {
        const int at = places.of(row);
        if (tile != 0 || row % gridDim.y != blockIdx.y || at < 0) continue;
        const long long to = cache + (long long)at * HEAD;
#pragma unroll 1
        for (int e = threadIdx.x * VECTOR; e < HEAD; e += THREADS * VECTOR) {
            *(Words*)(keys + to + e) = words(new_keys + row * PITCH_K + e);
            *(Words*)(values + to + e) = words(new_values + row * PITCH_V + e);
        }
    }

    Operands::Queries queries;
    Operands::Sums sums;
    clear(sums);
    place_rows(sums, m0, rows, first, s);
    queries.load(rotated);

    begin_with_sinks(sums, sink, scale);
    const bool has_rows = m0 + warp_m * TM * 16 < rows;
    const int count = max(0, (range.end - range.begin + TILE - 1) / TILE);
    // Puts new keys and values into the tiles of the steps from `first` to `last`.
    const auto substitute = [&](int first, int last) {
        for (int row = 0; row < NEW; ++row) {
            const int at = places.of(row), line = at - range.begin, step = line / TILE;
            if (line < 0 || at >= range.end || step < first || step > last) continue;
            T* const buffer = buffers + step % STAGES * STAGE;
            replace<VECTOR_K, SIZE_K>(buffer, line % TILE, new_keys + row * PITCH_K);
            replace<VECTOR_V, SIZE_V>(buffer + TILE * PITCH_K, line % TILE, new_values + row * PITCH_V);
        }
    };
    const bool fits = count <= STAGES;  // all tiles are in shared memory at once
    for (int step = again ? -STAGES : 0; step < count; ++step) {
        if (step < 0) {
            load_tile(step + STAGES);
            continue;
        }
        if (!fits || step == 0) {
            if (fits) cp_async_wait<0>();
            else cp_async_wait<STAGES - 1>();
            substitute(step, fits ? count - 1 : step);
            sync_copiers();
        }
        const auto ahead = load_mask(sums.rows, range.begin + step * TILE, n, mask, of_mask, s);
        multiply_tile(sums, queries.at, buffers + step % STAGES * STAGE, ahead, range.end, has_rows, shift, valid, n, mask,
                      of_mask, s, scale, softcap);
        if (!fits) {
            sync_copiers();
            load_tile(step + STAGES);
        }
    }
    finish(sums, shared, inbox, n, m0, first, rows, {y, left, beside, of_y}, s, steepness(scale));
}
