// Normalization by statistics of the elements themselves. Either a block sums up a group of elements, and
// reads it again while it is in the cache. Or, for few groups, several blocks share one: `moments` sums up
// each part, and in `standardize` every block adds the sums of all parts of its group, always in the same
// order.
//
// X, S, T and R are the types of elements, of scale and shift, of the epilogue's operands, and of results;
// O that of the returned statistics; A that of the arithmetic; I that of positions in a tensor.
//
// Compile-time: KIND, the divisor of the elements; CENTRED, whether the mean is subtracted; RUNNING, whether
// the statistics are returned as running averages; ALONG, whether adjacent elements have their own scales;
// PER_GROUP, whether a whole group has the same one; SHARED, whether a group has several parts; those of
// norm_parts.cuh.

#include "ptx/pdl.cuh"
#include "norm/moments.cuh"
#include "norm/norm_parts.cuh"

enum { DEVIATION, DEVIATION_PLUS, SUM, ROOT };

struct Walk {  // the offset of the i-th element of a group, or of the i-th group
    I inner, outer_step, inner_step;
    __device__ __forceinline__ I operator()(I i) const
    {
        return i < inner ? i * inner_step : i / inner * outer_step + i % inner * inner_step;
    }
};

struct Affine {  // scale and shift: `parameters` of them, each for `repeat` neighbours in memory
    const S *scale, *shift;  // may be null
    const T *z0, *z1;        // operands of the epilogue
    I parameters, repeat;
};

// Adds the first `words` words.
__device__ __forceinline__ void add(Moments& found, const Words<X> (&batch)[BATCH], int words)
{
    A sum = 0, square = 0;
    const A count = words * VECTOR;
    if (CENTRED) {
#pragma unroll
        for (int k = 0; k < BATCH; ++k)
#pragma unroll
            for (int e = 0; e < VECTOR; ++e)
                if (k < words) sum += A(batch[k].at[e]);
    }
    const A mean = CENTRED ? sum / count : A(0);
#pragma unroll
    for (int k = 0; k < BATCH; ++k)
#pragma unroll
        for (int e = 0; e < VECTOR; ++e)
            if (k < words) {
                const A value = A(batch[k].at[e]) - mean;
                square += KIND == SUM ? fabs(value) : value * value;
            }
    found.add(count, sum, square);
}

// Returns this thread's sums of a part of the group that begins at x.
__device__ __forceinline__ Moments sum_up(const X* x, const Part& part, const Walk& elements)
{
    Moments own;
    for (I at = part.first + threadIdx.x * VECTOR; at < part.last; at += BATCH * STEP) {
        Words<X> batch[BATCH];
        const int words = read(batch, x, at, part.last, elements);
        add(own, batch, words);
    }
    return own;
}

// Returns the factor of the elements.
__device__ __forceinline__ A factor(const Moments& all, A epsilon)
{
    const A variance = all.square / all.count;
    if (KIND == DEVIATION) return A(1) / sqrt(variance + epsilon);
    if (KIND == DEVIATION_PLUS) return A(1) / (sqrt(variance) + epsilon);
    if (all.square == A(0)) return A(0);
    return A(1) / (KIND == SUM ? all.square : sqrt(all.square));
}

__device__ __forceinline__ Words<S> parameters_at(const S* from, I own)
{
    Words<S> found;
    if (ALONG) return *(const Words<S>*)(from + own);
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) found.at[e] = from[own];
    return found;
}

// Normalizes a part of the group that begins at `origin`.
__device__ __forceinline__ void apply(const X* x, R* y, I origin, const Part& part,
                                      const Walk& elements, const Affine& affine, A mean, A by)
{
    for (I at = part.first + threadIdx.x * VECTOR; at < part.last; at += BATCH * STEP) {
        Words<X> batch[BATCH];
        const int words = read(batch, x + origin, at, part.last, elements);
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            if (k >= words) break;
            const I place = origin + elements(at + k * STEP);
            const I own = (PER_GROUP ? origin : place) / affine.repeat % affine.parameters;
            Words<S> scale, shift;
            if (affine.scale) scale = parameters_at(affine.scale, own);
            if (affine.shift) shift = parameters_at(affine.shift, own);
            Words<R> result;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) {
                A value = (A(batch[k].at[e]) - mean) * by;
                if (affine.scale) value *= A(scale.at[e]);
                if (affine.shift) value += A(shift.at[e]);
                const int channel = int(own) + (ALONG ? e : 0);
                result.at[e] = epilogue(value, place + e, 0, channel, affine.z0, affine.z1);
            }
            *(Words<R>*)(y + place) = result;
        }
    }
}

struct Given {  // statistics that go out, and running averages so far; all may be null
    O *mean, *deviation;
    const O *mean_before, *variance_before;
};

__device__ __forceinline__ void give(const Given& to, I group, A mean, A variance, A by, A momentum)
{
    const A kept = RUNNING ? momentum : A(0), rest = A(1) - kept;
    if (to.mean)
        to.mean[group] = O(mean * rest + (RUNNING ? A(to.mean_before[group]) * kept : A(0)));
    if (to.deviation)
        to.deviation[group] =
            O(RUNNING ? variance * rest + A(to.variance_before[group]) * kept : by);
}

// Sums up one part of a group.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
moments(const X* x, Moments* sums, I count, Parts parts, Walk groups, Walk elements)
{
    grid_dependency_sync();
    const Part part = part_of(blockIdx.x, parts, count);
    const Moments own = sum_up(x + groups(part.group), part, elements);
    const Moments all = over_block(own, A(part.last - part.first));
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}

// Normalizes one part of a group. `sums` are those of all parts, if a group is SHARED.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
standardize(const X* x, const Moments* sums, const S* scale, const S* shift, R* y, const T* z0,
            const T* z1, O* mean_out, O* deviation_out, const O* mean_in, const O* variance_in,
            I count, I parameters, I repeat, double epsilon, double momentum, Parts parts,
            Walk groups, Walk elements)
{
    grid_dependency_sync();
    // Starts with the elements that were summed up last: of a large group, only these are still in the cache.
    const Part part = part_of(gridDim.x - 1 - blockIdx.x, parts, count);
    const I origin = groups(part.group);
    Moments own;
    if (SHARED) {
        for (I i = threadIdx.x; i < parts.count; i += THREADS) {
            const Moments& more = sums[part.group * parts.count + i];
            own.add(more.count, more.sum, more.square);
        }
    } else {
        own = sum_up(x + origin, part, elements);
    }
    const Moments all = over_block(own, A(count));
    const A mean = all.sum / all.count, by = factor(all, A(epsilon));
    const Affine affine = {scale, shift, z0, z1, parameters, repeat};
    if (y) apply(x, y, origin, part, elements, affine, mean, by);
    if (part.number == 0 && threadIdx.x == 0)
        give({mean_out, deviation_out, mean_in, variance_in}, part.group, mean,
             all.square / all.count, by, A(momentum));
}
