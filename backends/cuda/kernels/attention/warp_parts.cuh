// What the warps of an attention on tensor cores have in common: their state, masks, and how their results are combined.
//
// A block processes ROWS rows of queries, 16 * TM * WARPS_M or eight (keys_left.cuh), of heads with the same keys (attention_parts.cuh). WARPS_N groups
// of warps divide the keys of a tile and add up their results at the end: few rows need this to occupy a GPU. When the
// maximum score grows, the accumulated sums are rescaled. Rows that see no key yield 0.
//
// Compile-time, besides the constants of heads.cuh, attention_parts.cuh and online_softmax.cuh: ROWS; SIZE_V, the size of
// values rounded up to a multiple of 16; VECTOR_Y, results per store (1, 8); KEYS of a warp's step; TM; WARPS_M; WARPS_N;
// CLUSTER, the number of parts of the keys if their blocks form a cluster and combine the results themselves, else 0.

#include "attention/heads.cuh"
#include "attention/attention_parts.cuh"
#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/cluster.cuh"
#include "attention/online_softmax.cuh"
#if F16X3
#include "gemm/halves.cuh"
#include "attention/heads_in_halves.cuh"
#endif
#if IN_HALVES
#include "gemm/store_halves.cuh"
#endif

constexpr int THREADS = 32 * WARPS_M * WARPS_N;
constexpr int TILE = KEYS * WARPS_N;
constexpr int PITCH_Y = SIZE_V + 4;  // of sums in shared memory, in floats
constexpr int GRAIN = 16;            // parts of the keys begin at multiples of it, as products take so many
constexpr int WIDE_Y = ROWS * SIZE_V / 8 < THREADS ? 4 : 8;  // neighbouring results of a thread
constexpr int FOURS = SIZE_V / 4;

template <int N> struct alignas(N * sizeof(T)) Elements {
    T at[N];
};

// A warp's state: its rows, the sums of values, the maximum scores and the sums of weights.
struct Accumulators {
    Row rows[TM][2];
    float results[TM][SIZE_V / 8][4], peak[TM][2], sum[TM][2];
};

__device__ __forceinline__ void clear(Accumulators& sums)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < SIZE_V / 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) sums.results[i][j][q] = 0;
        sums.peak[i][0] = sums.peak[i][1] = -INFINITY;
        sums.sum[i][0] = sums.sum[i][1] = 0;
    }
}

// Begins with the sink of every row's head if SINK: with a score whose value is zero. One group of warps has it, of the
// blocks that divide the keys the first.
__device__ __forceinline__ void begin_with_sinks(Accumulators& sums, const float* sink, float scale)
{
    if (!SINK || blockIdx.y != 0 || threadIdx.x / 32 % WARPS_N != 0) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            sums.peak[i][half] = sink[sums.rows[i][half].head] / (RAW ? scale : 1.0f);
            sums.sum[i][half] = threadIdx.x % 4 == 0 ? 1.0f : 0.0f;  // a quad adds its sums
        }
}

// What the mask adds to the scores of a thread, in the mask's type; loaded ahead of the scores where there are registers.
struct MaskTile {
    static constexpr bool AHEAD = MASK != NO_MASK && MASK_TERMS == 1 && (TM == 1 || !MASK_ROWS);
    // Neighbours are read at once if they can be, but pairs of float32 would take more registers.
    static constexpr bool PAIRS = MASK_PAIRS && sizeof(M) < 4;
    static constexpr int ROWS_OF = MASK_ROWS ? 2 : 1;
    M at[AHEAD && !PAIRS ? KEYS / 8 : 1][2][ROWS_OF];
    PairWord words[AHEAD && PAIRS ? KEYS / 8 : 1][ROWS_OF];
    int first;  // of the warp's keys
    int length;

    __device__ __forceinline__ float operator()(int eight, int side, int half) const
    {
        if (first + eight * 8 + threadIdx.x % 4 * 2 + side >= length) return -INFINITY;
        const M found = at[eight][side][MASK_ROWS ? half : 0];
        return MASK == NUMBERS ? float(found) : bool(found) ? 0.0f : -INFINITY;
    }
};

__device__ __forceinline__ auto biases_at(const MaskTile& mask, int eight)
{
    if constexpr (!MaskTile::PAIRS) {
        return EachBias<MaskTile>{mask, eight};
    } else {
        BiasPairs found = {{}, mask.first + eight * 8 + int(threadIdx.x) % 4 * 2 < mask.length};
        for (int half = 0; half < MaskTile::ROWS_OF; ++half)
            found.of[half] = *(const MaskPair*)&mask.words[eight][half];
        return found;
    }
}

// Starts to load the mask of a warp's keys of the tile from position `t0` on.
__device__ __forceinline__ MaskTile load_mask(const Row (&rows)[TM][2], int t0, int n, const M* mask,
                                              const MaskSteps& by, const Sizes& s)
{
    MaskTile found;
    found.first = t0 + threadIdx.x / 32 % WARPS_N * KEYS;
    found.length = s.mask_length;
    if constexpr (MaskTile::AHEAD) {
#pragma unroll
        for (int half = 0; half < MaskTile::ROWS_OF; ++half) {
            const Row& row = rows[0][half];
            const M* const from = row_of_mask(mask, n, row.head, row.query, by).first;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                const int t = found.first + j * 8 + threadIdx.x % 4 * 2;
                if constexpr (MaskTile::PAIRS) {
                    found.words[j][half] = t < s.mask_length ? *(const PairWord*)(from + t) : PairWord(0);
                } else {
#pragma unroll
                    for (int side = 0; side < 2; ++side)
                        found.at[j][side][half] = t + side < s.mask_length ? from[along<INNER_KEYS>(t + side, by.key, by.inner_key)] : M(0);
                }
            }
        }
    }
    return found;
}

// Turns the scores of a warp's rows into weights, and rescales the sums; `count` sixteens of keys have scores.
__device__ __forceinline__ void weigh_rows(Accumulators& to, float (&scores)[TM][KEYS / 8][4], int count, int shift,
                                           int valid, int n, const MaskTile& ahead, const M* mask,
                                           const MaskSteps& of_mask, const Sizes& s, float scale, float softcap)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const Row(&rows)[2] = to.rows[i];
        const Seen seen = {{rows[0].query + shift, rows[1].query + shift}, ahead.first, valid, count * 2};
        if constexpr (MASK == NO_MASK || MaskTile::AHEAD) {
            weigh(scores[i], to.results[i], to.peak[i], to.sum[i], ahead, seen, s, scale, softcap);
        } else {
            const MaskInPlace bias_of = {{row_of_mask(mask, n, rows[0].head, rows[0].query, of_mask),
                                          row_of_mask(mask, n, rows[1].head, rows[1].query, of_mask)},
                                         ahead.first, s, of_mask};
            weigh(scores[i], to.results[i], to.peak[i], to.sum[i], bias_of, seen, s, scale, softcap);
        }
    }
}

// Writes N adjacent results, limited to the `size` elements of a head.
template <int N> __device__ __forceinline__ void store(T* to, const float (&found)[N], float by, int left)
{
    Elements<N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) out.at[e] = T(found[e] * by);
    if constexpr (VECTOR_Y == 8) {
        *(Elements<N>*)to = out;
    } else {
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (e < left) to[e] = out.at[e];
    }
}

// Stores a thread's two results of an eight of columns.
__device__ __forceinline__ void leave_pair(float* row, int eight, float first, float second)
{
#if F16X3 && CUT
    float* const to = row + column_of_eight(eight);
    to[0] = first, to[4] = second;
#else
    *(float2*)(row + eight * 8 + threadIdx.x % 4 * 2) = make_float2(first, second);
#endif
}

// The partial results of groups of warps for the rows of a block, in shared memory.
struct WarpParts {
    float *sums, *peaks, *totals;

    __device__ __forceinline__ explicit WarpParts(void* shared)
        : sums((float*)shared), peaks(sums + WARPS_N * ROWS * PITCH_Y), totals(peaks + WARPS_N * ROWS)
    {
    }

    // Stores those of a warp's rows before `count`.
    __device__ __forceinline__ void leave(const Accumulators& from, int count = ROWS) const
    {
        const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N, warp_n = threadIdx.x / 32 % WARPS_N;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int own = (warp_m * TM + i) * 16 + half * 8 + lane / 4, row = warp_n * ROWS + own;
                const float total = over_quad_sum(from.sum[i][half]);
                if (own >= count) continue;
                peaks[row] = from.peak[i][half];
                totals[row] = total;
#pragma unroll
                for (int j = 0; j < SIZE_V / 8; ++j)
                    leave_pair(sums + row * PITCH_Y, j, from.results[i][j][half * 2], from.results[i][j][half * 2 + 1]);
            }
    }

    // Returns the maximum score of a row, and its sum of weights.
    __device__ __forceinline__ float2 beside(int row, float steep) const
    {
        float top = -INFINITY, total = 0;
#pragma unroll
        for (int w = 0; w < WARPS_N; ++w) top = fmaxf(top, peaks[w * ROWS + row]);
        const float most = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int w = 0; w < WARPS_N; ++w)
            total += totals[w * ROWS + row] * exp2_of((peaks[w * ROWS + row] - most) * steep);
        return make_float2(top, total);
    }

    // Adds up N adjacent sums of a row, rescaled to its maximum score.
    template <int N>
    __device__ __forceinline__ void add(float (&found)[N], int row, int column, float top, float steep) const
    {
        const float most = top == -INFINITY ? 0.0f : top;
#pragma unroll
        for (int w = 0; w < WARPS_N; ++w) {
            const float by = exp2_of((peaks[w * ROWS + row] - most) * steep);
            const float* from = sums + (w * ROWS + row) * PITCH_Y + column;
#pragma unroll
            for (int e = 0; e < N; ++e) found[e] += from[e] * by;
        }
    }
};

// Where results are stored: those of a row in `y`, or, for parts that another kernel combines, sums in `left` and their
// maximum scores and weights in `beside`.
struct Results {
    T* y;
    float* left;
    float2* beside;
    Steps of_y;
#if IN_HALVES
    RowsInHalves halves;
#endif
};

__device__ __forceinline__ void leave(const WarpParts& parts, const Accumulators& from, int count)
{
    parts.leave(from, count);
}

// Opens the memory to which the blocks of a cluster send their sums of `count` rows: a barrier in 16 bytes, which expects
// their bytes, and an equal share of the sums of each block, in fours.
__device__ __forceinline__ void open_inbox(float4* inbox, int count)
{
    if constexpr (CLUSTER > 0) {
        const int share = (count * FOURS + CLUSTER - 1 - int(blockIdx.y)) / CLUSTER;
        dsmem_expect(shared_address(inbox), CLUSTER * (share + count) * 16);
        cluster_arrive_relaxed();
    }
}

// Combines the partial results of the blocks of a cluster. Each block sends every other its share of the sums, to the
// memory after that block's own parts; no block reads another's memory, so a block may exit without waiting for readers.
__device__ __forceinline__ void join_cluster(const WarpParts& parts, float4* inbox, int n, int m0, int first, int rows,
                                             const Results& to, const Sizes& s, float steep)
{
    constexpr int PARTS = CLUSTER > 0 ? CLUSTER : 1, SHARE = (ROWS * FOURS + PARTS - 1) / PARTS;
    const u32 barrier = shared_address(inbox++);
    float4* const besides = inbox + PARTS * SHARE;
    const int own = blockIdx.y, count = min(ROWS, rows - m0);
    cluster_wait();  // all inboxes are open
    for (int item = threadIdx.x; item < count * FOURS; item += THREADS) {
        const int row = item / FOURS, column = item % FOURS * 4;
        float found[4] = {};
        parts.add(found, row, column, parts.beside(row, steep).x, steep);
        dsmem_send(shared_address(inbox + own * SHARE + item / PARTS), barrier, item % PARTS,
                   make_float4(found[0], found[1], found[2], found[3]));
    }
#pragma unroll 1
    for (int item = THREADS - 1 - threadIdx.x; item < count * PARTS; item += THREADS) {  // by the last warps
        const float2 found = parts.beside(item / PARTS, steep);
        dsmem_send(shared_address(besides + own * ROWS + item / PARTS), barrier, item % PARTS,
                   make_float4(found.x, found.y, 0, 0));
    }
    dsmem_wait(barrier);
    for (int place = threadIdx.x; place * PARTS + own < count * FOURS; place += THREADS) {
        const int item = place * PARTS + own, row = item / FOURS, column = item % FOURS * 4;
        float most = -INFINITY, total = 0, out[4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; ++part) most = fmaxf(most, besides[part * ROWS + row].x);
        if (most == -INFINITY) most = 0;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const float4 beside = besides[part * ROWS + row], found = inbox[part * SHARE + place];
            const float by = exp2_of((beside.x - most) * steep);
            total += beside.y * by;
            out[0] += found.x * by;
            out[1] += found.y * by;
            out[2] += found.z * by;
            out[3] += found.w * by;
        }
        if (column >= s.size_v) continue;
        const Row at = row_of(m0 + row, first, s);
        store(to.y + n * to.of_y.batch + at.head * to.of_y.head + at.query * to.of_y.row + column, out,
              total == 0 ? 0.0f : 1 / total, s.size_v - column);
    }
}

// Combines the results of the groups of warps and of the blocks of a cluster. `shared` is free except for copies in
// flight.
template <typename Sums>
__device__ __forceinline__ void finish(const Sums& from, void* shared, float4* inbox, int n, int m0, int first, int rows,
                                       const Results& to, const Sizes& s, float steep)
{
    cp_async_wait<0>();
    __syncthreads();
    const WarpParts parts(shared);
    leave(parts, from, rows - m0);
    __syncthreads();
    if constexpr (CLUSTER > 0) {
        join_cluster(parts, inbox, n, m0, first, rows, to, s, steep);
        return;
    }
#if IN_HALVES
    static_assert(!SPLIT && GROUP == 1, "a block has whole rows of one head");
    for (int item = threadIdx.x; item < ROWS * FOURS; item += THREADS) {
        const int row = item / FOURS, column = item % FOURS * 4;
        const bool inside = m0 + row < rows;
        float found[4] = {};
        if (inside) {
            const float2 beside = parts.beside(row, steep);
            const float by = beside.y == 0 ? 0.0f : 1 / beside.y;
            parts.add(found, row, column, beside.x, steep);
            if (PLAIN)
                store(to.y + n * to.of_y.batch + first * to.of_y.head + (m0 + row) * to.of_y.row + column, found, by, 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) found[e] *= by;
        }
        store_halves(to.halves, found, inside ? n * rows + m0 + row : to.halves.rows, first * SIZE_V + column);
    }
    return;
#endif
    constexpr int PER_ROW = SIZE_V / WIDE_Y;
    for (int item = threadIdx.x; item < ROWS * PER_ROW; item += THREADS) {
        const int row = item / PER_ROW, column = item % PER_ROW * WIDE_Y;
        if (m0 + row >= rows || column >= s.size_v) continue;
        const Row at = row_of(m0 + row, first, s);
        const float2 beside = parts.beside(row, steep);
        float found[WIDE_Y] = {};
        parts.add(found, row, column, beside.x, steep);
        if constexpr (SPLIT) {
            const long long place = place_of(n, at, s);
            float4* const out = (float4*)(to.left + place * SIZE_V + column);
#pragma unroll
            for (int e = 0; e < WIDE_Y; e += 4)
                out[e / 4] = make_float4(found[e], found[e + 1], found[e + 2], found[e + 3]);
            if (column == 0) to.beside[place] = beside;
        } else {
            store(to.y + n * to.of_y.batch + at.head * to.of_y.head + at.query * to.of_y.row + column, found,
                  beside.y == 0 ? 0.0f : 1 / beside.y, s.size_v - column);
        }
    }
}
