// The k greatest (or least) elements of lines of [outer][size][inner], in order; ties go to the lower index; NaN is the
// greatest. T is the type of the elements, A that of comparisons. Of longer lines, each of a number of chunks gives its
// k first, of which a second launch finds the first; there `origins` says where these were.
//
// A warp, or a block, has a line in registers. As many of the greatest elements of its lanes as k bound the k-th of the
// line from below; bisection raises that bound until no more than ROOM elements reach it. Only these are ranked, by
// comparison with each other, or sorted where they are many (bitonic sort).
//
// Compile-time: LARGEST; WARPS of a block; LINE, warps of a line: one or all; PER, elements of a lane; DEPTH, how many
// of a lane are counted on for the first bound (of all lanes: k at least); ROOM, at least k, and sorted
// if more than RANKED; CHUNKS of a line; STRIDED, whether inner > 1.

#include "ptx/pdl.cuh"
#include "reduce/block.cuh"
#include "reduce/sort_entries.cuh"

constexpr int LANES = 32 * LINE, LINES = WARPS / LINE, SPAN = PER * LANES;
static_assert(ROOM <= RANKED || (LINE == WARPS && !(ROOM & (ROOM - 1))), "a block sorts a power of two");
static_assert(LINE == 1 || LINE == WARPS, "a block synchronizes as a whole");
static_assert(PER <= 32 && DEPTH <= PER, "a bit an element");

struct Greatest {
    __device__ __forceinline__ Key operator()(Key a, Key b) const { return a > b ? a : b; }
};
struct Least {
    __device__ __forceinline__ Key operator()(Key a, Key b) const { return a < b ? a : b; }
};

// All threads of a line get the result.
template <typename V, typename Combine>
__device__ __forceinline__ V over_line(V value, Combine combine)
{
    if constexpr (LINE == 1) return over_warp(value, combine);
    else return over_block(value, combine);
}

__device__ __forceinline__ int total(unsigned kept)
{
    const int own = __reduce_add_sync(~0u, __popc(kept));
    if constexpr (LINE == 1) return own;
    __shared__ int parts[WARPS];
    __syncthreads();  // `parts` may still be read from the call before
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    const int part = threadIdx.x % 32;
    return __reduce_add_sync(~0u, part < WARPS ? parts[part % WARPS] : 0);
}

// Returns the value of the lane that has the n-th greatest (bitonic sort).
__device__ __forceinline__ Key nth_of_warp(Key own, int n)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int length = 2; length <= 32; length *= 2) {
#pragma unroll
        for (int apart = length / 2; apart; apart /= 2) {
            const Key other = __shfl_xor_sync(~0u, own, apart);
            const bool is_first = !(lane & apart) == !(lane & length);
            own = is_first ? Greatest()(own, other) : Least()(own, other);
        }
    }
    return __shfl_sync(~0u, own, n);
}

__device__ __forceinline__ unsigned reaching(const Key (&keys)[PER], Key bound)
{
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (keys[i] >= bound) kept |= 1u << i;
    return kept;
}

// Returns a bit for each of k to ROOM elements, among them the k first. Beyond the line, keys are 0, and last in order.
__device__ __forceinline__ unsigned select(const Key (&keys)[PER], int own, int k)
{
    Key best[DEPTH] = {};
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        Key next = keys[i];
#pragma unroll
        for (int n = 0; n < DEPTH; ++n) {
            const Key more = Greatest()(best[n], next);
            next = Least()(best[n], next);
            best[n] = more;
        }
    }
    Key most = over_line(best[0], Greatest());  // the k-th is from `least` to it
    Key least = nth_of_warp(best[DEPTH - 1], (k + DEPTH * LINE - 1) / (DEPTH * LINE) - 1);
    if constexpr (LINE > 1) least = over_line(least, Least());
    unsigned kept = reaching(keys, least);
    int count = total(kept);
    while (count > ROOM && least < most) {
        const Key middle = most - (most - least) / 2;
        const unsigned upper = reaching(keys, middle);
        const int reach = total(upper);
        if (reach < k) {
            most = middle - 1;
        } else {
            least = middle;
            kept = upper;
            count = reach;
        }
    }
    if (count <= ROOM) return kept;
    const unsigned above = least == Key(~Key(0)) ? 0 : reaching(keys, least + 1), equal = kept & ~above;
    for (int begin = 0, end = SPAN; count > ROOM;) {  // less than k are above, or equal and before `begin`
        const int middle = (begin + end) / 2, of_own = max(middle - own + LANES - 1, 0) / LANES;
        const unsigned first = above | (equal & (of_own < 32 ? (1u << of_own) - 1 : ~0u));
        const int reach = total(first);
        if (reach < k) {
            begin = middle;
        } else {
            end = middle;
            kept = first;
            count = reach;
        }
    }
    return kept;
}

__device__ __forceinline__ void sort(Entry* entries, int count)
{
    int all = 2;
    while (all < count) all *= 2;
    for (int n = count + threadIdx.x; n < all; n += THREADS) entries[n] = Entry{};
    for (int length = 2; length <= all; length *= 2) {
        for (int apart = length / 2; apart; apart /= 2) {
            __syncthreads();
            for (int n = threadIdx.x; n < all / 2; n += THREADS) {
                const int at = 2 * n - (n & (apart - 1));
                const Entry a = entries[at], b = entries[at + apart];
                if (comes_first(a, b) == !(at & length)) continue;
                entries[at] = b;
                entries[at + apart] = a;
            }
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS)
top_k_lines(const T* x, const long long* origins, T* values, long long* places, long long lines, int whole, int k,
            int stride)
{
    const int inner = STRIDED ? stride : 1;
    __shared__ Entry found[LINES][ROOM];
    __shared__ int taken;
    const int own = threadIdx.x % LANES, lane = threadIdx.x % 32;
    const long long part = blockIdx.x * (long long)LINES + threadIdx.x / LANES;  // [outer][inner][chunks]
    if (part >= lines * CHUNKS) return;
    const long long row = part / CHUNKS, outer = row / inner, column = row - outer * inner;
    const int chunk = part - row * CHUNKS;
    const int begin = (long long)whole * chunk / CHUNKS, size = (long long)whole * (chunk + 1) / CHUNKS - begin;
    const long long from = (outer * whole + begin) * inner + column;
    if (LINE > 1 && threadIdx.x == 0) taken = 0;
    grid_dependency_sync();
    Key keys[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int at = own + i * LANES;
        keys[i] = i < PER - 1 || at < size ? key_of(A(x[from + (long long)at * inner])) : Key(0);
    }
    unsigned kept = PER < 32 ? (1u << PER % 32) - 1 : ~0u;
    if constexpr (SPAN > ROOM) kept = select(keys, own, k);
    int end = __popc(kept);
    const int kept_here = end;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, end, distance);
        if (lane >= distance) end += other;
    }
    int count = __shfl_sync(~0u, end, 31), to = end - kept_here;
    if constexpr (LINE > 1) {
        __syncthreads();
        int first = 0;
        if (lane == 0) first = atomicAdd(&taken, count);
        to += __shfl_sync(~0u, first, 0);
    }
    Entry *const entries = found[threadIdx.x / LANES], *next = entries + to;
#pragma unroll
    for (int i = 0; i < PER; ++i)
        if (kept >> i & 1) *next++ = entry<Entry>(keys[i], own + i * LANES);
    if constexpr (LINE > 1) {
        __syncthreads();
        count = taken;
    } else {
        __syncwarp();
    }
    const auto store = [&](int place, int rank) {
        const long long source = from + (long long)place * inner;
        const long long result = ((outer * CHUNKS + chunk) * k + rank) * inner + column;
        if (values) values[result] = x[source];
        if (places) places[result] = origins ? origins[source] : begin + place;
    };
    if constexpr (ROOM > RANKED) {
        sort(entries, count);
        for (int n = own; n < k; n += LANES) store(place_of(entries[n]), n);
    } else {
        for (int n = own; n < count; n += LANES) {
            const Entry mine = entries[n];
            int rank = 0;
#pragma unroll 4
            for (int other = 0; other < count; ++other) rank += comes_first(entries[other], mine);
            if (rank < k) store(place_of(mine), rank);
        }
    }
}
