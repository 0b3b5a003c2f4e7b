// Normalization of groups of adjacent channels of images, channels last. A block has a slab of channels, which is a
// number of whole groups, of some pixels of an image. Its threads read words of adjacent channels, each those of the
// same channels of pixel after pixel, so that a thread sums up statistics of few groups, and has the scale and shift
// of its channels in registers.
//
// Where several blocks share a slab, they exchange their sums: the blocks of a cluster through distributed shared
// memory; or `channel_moments` sums up all parts, and every block of `channel_groups` merges those of its slab, always
// in the same order.
//
// X, S, T and R are the types of elements, of scale and shift, of the epilogue's operands, and of results; A that of
// the arithmetic; I that of positions in a tensor.
//
// Compile-time: WARPS of a block; SINGLE, whether a slab is one group; VECTOR, adjacent channels per load; BATCH, the
// loads of a thread that are in flight together; ALIKE, the channels of a word of which a group has all or none;
// CENTRED, whether the mean is subtracted; KEPT, whether a block keeps its elements in shared memory, or reads them
// again; JOINED, whether several blocks share a slab, and CLUSTER, whether they do so as one; Z0 and Z1, how operands
// of the epilogue are indexed.

#include "ptx/pdl.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/cluster.cuh"
#include "norm/moments.cuh"

enum { ALONG = 1, BY_CHANNEL = 2 };

constexpr int KINDS = VECTOR / ALIKE;  // groups of a word, or parts of them
constexpr int FEW = 8;                 // blocks whose sums one thread merges
// Whether everything that the epilogue indexes like the result has been read in words.
constexpr bool WHOLE = (Z0 == ALONG || Z0 == 0 || Z0 == BY_CHANNEL) && (Z1 == ALONG || Z1 == 0 || Z1 == BY_CHANNEL);

template <typename V> struct alignas(sizeof(V) * VECTOR < 16 ? sizeof(V) * VECTOR : 16) Words {
    V at[VECTOR];
};

struct Slabs {  // of an image: pixels, channels and groups' depth; channels, words and groups of a slab
    int pixels, channels, depth, width, words, groups;
    int parts, chunk;  // blocks that share a slab, and the pixels of each but the last
    int row_x, row_y;  // elements from one pixel to the next
};

struct alignas(16) Shared {  // sums of a group; merged ones have its mean and factor in place of these
    A count, sum, square;
};

// What a block works on, and where a thread begins.
struct Own {
    int image, first, last;  // pixels
    int channel;             // the first of the block
    int word, row, rows;     // of the thread; rows of threads

    __device__ __forceinline__ Own(const Slabs& of)
    {
        const int slabs = of.channels / of.width;
        int rest = blockIdx.x / of.parts;
        const int part = blockIdx.x - rest * of.parts;
        image = rest / slabs;
        channel = (rest - image * slabs) * of.width;
        first = part * of.chunk;
        last = min(first + of.chunk, of.pixels);
        rows = THREADS / of.words;
        row = threadIdx.x / of.words;
        word = threadIdx.x - row * of.words;
    }

    // Returns the position of the thread's first word in a tensor whose pixels are `apart` elements apart.
    __device__ __forceinline__ I origin(const Slabs& of, int apart) const
    {
        return ((I)image * of.pixels + first + row) * apart + channel + word * VECTOR;
    }
    // Returns the group of the block to which channels of the thread's word belong.
    __device__ __forceinline__ int group(const Slabs& of, int kind) const
    {
        return SINGLE ? 0 : (word * VECTOR + kind * ALIKE) / of.depth;
    }
    // Returns the number of the thread's pixels, `rows` apart.
    __device__ __forceinline__ int pixels() const
    {
        const int left = row < rows ? last - first - row : 0;  // a thread without a pixel takes part in sums
        return left > 0 ? (left + rows - 1) / rows : 0;
    }
};

struct Part {  // what a thread has of a group: the mean, and the squares of differences from it
    A mean, square;
};

// Parts of all threads, those of each kind by themselves. Adjacent threads write to different banks, and read those of
// adjacent groups from different ones.
constexpr int APART = THREADS + 16 / KINDS;

__device__ __forceinline__ Part& part_of(Part* stage, const Slabs& of, int row, int column)
{
    return stage[column % KINDS * APART + row * of.words + column / KINDS];
}

// Sums up a thread's words, about the first of their elements.
__device__ __forceinline__ void sum_up(Part (&parts)[KINDS], const X* x, Words<X>* kept, const Slabs& of, const Own& own)
{
    const int pixels = own.pixels();
    const I apart = (I)own.rows * of.row_x;
    x += own.origin(of, of.row_x);
    A about[KINDS] = {}, sum[KINDS] = {}, square[KINDS] = {};
    if (CENTRED && pixels) {
        const Words<X> begin = *(const Words<X>*)x;
#pragma unroll
        for (int e = 0; e < KINDS; ++e) about[e] = A(begin.at[e * ALIKE]);
    }
    for (int pixel = 0; pixel < pixels; pixel += BATCH) {
        Words<X> batch[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
            if (pixel + k < pixels) batch[k] = *(const Words<X>*)(x + (pixel + k) * apart);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            if (pixel + k >= pixels) break;
            if (KEPT) kept[(pixel + k) * THREADS + threadIdx.x] = batch[k];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                const A value = A(batch[k].at[e]) - about[e / ALIKE];
                sum[e / ALIKE] += value;
                square[e / ALIKE] += value * value;
            }
        }
    }
#pragma unroll
    for (int e = 0; e < KINDS; ++e) {
        const A mean = pixels ? sum[e] / A(pixels * ALIKE) : A(0);  // from `about` on
        const A rest = square[e] - sum[e] * mean;
        parts[e] = {about[e] + mean, CENTRED ? (rest < A(0) ? A(0) : rest) : square[e]};
    }
}

// Where a group has one part in each row: adjacent lanes read those of adjacent groups, each of some rows.
template <typename Then>
__device__ __forceinline__ void over_rows(Part* stage, A* sums, const Slabs& of, const Own& own, Then then)
{
    const int pixels = min(of.chunk, of.pixels - own.first), of_row = pixels / own.rows, more = pixels % own.rows;
    const int shares = of.groups < THREADS ? THREADS / of.groups : 1;
    const int share = threadIdx.x / of.groups, begin = threadIdx.x - share * of.groups;
    const A whole = A(pixels) * of.depth;
    auto over_shares = [=](int group) {
        A sum = 0;
        for (int s = 0; s < shares; ++s) sum += sums[s * of.groups + group];
        return sum;
    };
    A total[KINDS] = {};  // of the elements of each of the thread's groups
#pragma unroll
    for (int step = 0; step < 2; ++step) {  // elements, and then squares of their differences from the mean
#pragma unroll
        for (int k = 0; k < KINDS; ++k) {
            const int group = begin + k * THREADS;
            if (share >= shares || group >= of.groups) break;
            const A mean = total[k] / whole;
            A sum = 0;
#pragma unroll 4
            for (int r = share; r < own.rows; r += shares) {
                const Part part = part_of(stage, of, r, group);
                const A count = A((of_row + (r < more)) * ALIKE), off = CENTRED ? part.mean - mean : A(0);
                sum += step ? part.square + count * off * off : count * part.mean;
            }
            sums[share * of.groups + group] = sum;
        }
        __syncthreads();
        if (step) break;
#pragma unroll
        for (int k = 0; k < KINDS; ++k)
            if (begin + k * THREADS < of.groups) total[k] = over_shares(begin + k * THREADS);
        __syncthreads();
    }
    if (share) return;
#pragma unroll
    for (int k = 0; k < KINDS; ++k)
        if (begin + k * THREADS < of.groups)
            then(begin + k * THREADS, Shared{whole, total[k], over_shares(begin + k * THREADS)});
}

// Merges what the threads of a block have of each group, and calls `then` with the group's sums in one thread.
template <typename Then>
__device__ __forceinline__ void over_groups(const Part (&parts)[KINDS], const Slabs& of, const Own& own, Part* stage,
                                            Then then)
{
    if constexpr (SINGLE) {
        const A count = A(own.pixels() * VECTOR);
        const A whole = A(min(of.chunk, of.pixels - own.first)) * of.depth;
        const Moments all = over_block({count, parts[0].mean * count, parts[0].square}, whole);
        if (threadIdx.x == 0) then(0, Shared{whole, all.sum, all.square});
        return;
    }
    const int columns = of.words * KINDS, each = columns / of.groups;  // parts of a row, and of a group in it
    if (own.row < own.rows)
#pragma unroll
        for (int e = 0; e < KINDS; ++e) stage[e * APART + threadIdx.x] = parts[e];
    __syncthreads();
    if (each == 1) {
        over_rows(stage, (A*)(stage + APART * KINDS), of, own, then);
        return;
    }
    const int pixels = min(of.chunk, of.pixels - own.first), of_row = pixels / own.rows, more = pixels % own.rows;
    const A whole = A(pixels) * of.depth;
    const int lane = threadIdx.x % 32, abreast = each < 32 ? 32 / each : 1;
    const int row = lane / each, column = lane - row * each;
    for (int group = threadIdx.x / 32; group < of.groups; group += WARPS) {
        const int first = group * each + column;
        A sum = 0, square = 0;
        if (row < abreast)
#pragma unroll 4
            for (int r = row; r < own.rows; r += abreast)
                for (int c = 0; c < each - column; c += 32)
                    sum += part_of(stage, of, r, first + c).mean * A((of_row + (r < more)) * ALIKE);
        sum = over_warp(sum, Plus());
        const A mean = sum / whole;
        if (row < abreast)
#pragma unroll 4
            for (int r = row; r < own.rows; r += abreast)
                for (int c = 0; c < each - column; c += 32) {
                    const Part part = part_of(stage, of, r, first + c);
                    const A off = CENTRED ? part.mean - mean : A(0);
                    square += part.square + A((of_row + (r < more)) * ALIKE) * off * off;
                }
        square = over_warp(square, Plus());
        if (lane == 0) then(group, Shared{whole, sum, square});
    }
}

// Returns the mean of a group's elements, and their factor in place of the squares.
__device__ __forceinline__ Shared merged_of(A count, A sum, A square, A epsilon)
{
    return {count, CENTRED ? sum / count : A(0), A(1) / sqrt(square / count + epsilon)};
}

// Merges the sums of all parts of each group; `of_part` returns those of one.
template <typename Find>
__device__ __forceinline__ void merge(const Slabs& of, Shared* found, A epsilon, Find of_part)
{
    if (of.parts <= FEW && of.groups > WARPS) {
        for (int group = threadIdx.x; group < of.groups; group += THREADS) {
            Moments own;
            for (int part = 0; part < of.parts; ++part) {
                const Shared more = of_part(group, part);
                own.add(more.count, more.sum, more.square);
            }
            found[group] = merged_of(own.count, own.sum, own.square, epsilon);
        }
        return;
    }
    const int lane = threadIdx.x % 32;
    for (int group = threadIdx.x / 32; group < of.groups; group += WARPS) {
        Moments own;
        for (int part = lane; part < of.parts; part += 32) {
            const Shared more = of_part(group, part);
            own.add(more.count, more.sum, more.square);
        }
        const A all = A(of.pixels) * of.depth, mean = over_warp(own.sum, Plus()) / all;
        if (CENTRED && own.count > A(0)) {
            const A off = own.sum / own.count - mean;
            own.square += own.count * off * off;
        }
        own.square = over_warp(own.square, Plus());
        if (lane == 0) found[group] = merged_of(all, mean * all, own.square, epsilon);
    }
}

// Returns an operand's elements of a word, or where all of them are.
template <int INDEXED>
__device__ __forceinline__ Words<T> ahead(const T* z, I place)
{
    if constexpr (INDEXED == ALONG) return *(const Words<T>*)(z + place);
    return {};
}

struct Affine {  // scale and shift of a thread's channels
    Words<S> scale, shift;

    __device__ __forceinline__ Affine(const S* from, const S* more, int channel)
        : scale(*(const Words<S>*)(from + channel)), shift(*(const Words<S>*)(more + channel))
    {
    }
};

// Normalizes a block's part of its groups.
__device__ __forceinline__ void apply(const X* x, const Words<X>* kept, const Affine& affine, R* y, const T* z0,
                                      const T* z1, const Slabs& of, const Own& own, const Shared* found)
{
    A mean[KINDS], by[VECTOR], more[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) {
        const Shared& group = found[own.group(of, e / ALIKE)];
        mean[e / ALIKE] = group.sum;
        by[e] = group.square * A(affine.scale.at[e]);
        more[e] = A(affine.shift.at[e]);
    }
    const int pixels = own.pixels();
    const I apart = (I)own.rows * of.channels, origin = own.origin(of, of.channels);
    const I apart_x = (I)own.rows * of.row_x, apart_y = (I)own.rows * of.row_y;
    x += own.origin(of, of.row_x), y += own.origin(of, of.row_y);
    for (int pixel = 0; pixel < pixels; pixel += BATCH) {
        Words<X> batch[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
            if (pixel + k < pixels)
                batch[k] = KEPT ? kept[(pixel + k) * THREADS + threadIdx.x]
                                : *(const Words<X>*)(x + (pixel + k) * apart_x);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            if (pixel + k >= pixels) break;
            const I place = origin + (pixel + k) * apart;
            const Words<T> first = ahead<Z0>(z0, place), second = ahead<Z1>(z1, place);
            Words<R> result;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                const A value = (A(batch[k].at[e]) - mean[e / ALIKE]) * by[e] + more[e];
                const int channel = own.channel + own.word * VECTOR + e;
                result.at[e] = epilogue(value, WHOLE ? e : place + e, 0, channel, Z0 == ALONG ? first.at : z0,
                                        Z1 == ALONG ? second.at : z1);
            }
            *(Words<R>*)(y + (pixel + k) * apart_y) = result;
        }
    }
}

// Sums up a part of a slab.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
channel_moments(const X* x, Shared* sums, Slabs of)
{
    extern __shared__ __align__(16) unsigned char shared[];
    grid_dependency_sync();
    const Own own(of);
    Part parts[KINDS];
    sum_up(parts, x, nullptr, of, own);
    sums += (I)blockIdx.x * of.groups;
    over_groups(parts, of, own, (Part*)shared, [=](int group, const Shared& all) { sums[group] = all; });
}

// Normalizes a part of a slab. `sums` are those of all parts, where these are summed up before.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
channel_groups(const X* x, const Shared* sums, const S* scale, const S* shift, R* y, const T* z0, const T* z1,
               Slabs of, double epsilon)
{
    extern __shared__ __align__(16) unsigned char shared[];
    Shared* found = (Shared*)shared;
    Shared* merged = found + of.groups;
    Part* stage = (Part*)(merged + of.groups);
    Words<X>* kept = (Words<X>*)((A*)(stage + APART * KINDS) + THREADS * KINDS);
    const Own own(of);
    const Affine affine(scale, shift, own.channel + own.word * VECTOR);
    grid_dependency_sync();
    if constexpr (JOINED && !CLUSTER) {
        sums += (I)(blockIdx.x / of.parts) * of.parts * of.groups;
        merge(of, merged, A(epsilon), [=](int group, int part) { return sums[part * of.groups + group]; });
    } else {
        Part parts[KINDS];
        sum_up(parts, x, kept, of, own);
        over_groups(parts, of, own, stage, [=](int group, const Shared& all) {
            if (CLUSTER)
                found[group] = all;
            else
                merged[group] = merged_of(all.count, all.sum, all.square, A(epsilon));
        });
        if constexpr (CLUSTER) {
            cluster_sync();
            merge(of, merged, A(epsilon), [=](int group, int part) -> Shared {
                const float4 there = dsmem_load((u32)__cvta_generic_to_shared(found + group), part);
                return {A(there.x), A(there.y), A(there.z)};
            });
        }
    }
    __syncthreads();
    if (own.row < own.rows) apply(x, kept, affine, y, z0, z1, of, own, merged);
    if constexpr (CLUSTER) cluster_sync();  // others may still read this block's sums
}
