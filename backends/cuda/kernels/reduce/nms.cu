// Non-maximum suppression: boxes by descending score without those that overlap a better one. One block per
// class of an image, which repeatedly takes the best remaining box and drops those that overlap it; then
// one launch concatenates the classes. T is the type of boxes and scores, A that of the arithmetic.
//
// Compile-time: WARPS of a block; CENTRED, boxes are (x, y, width, height) of their centres.

#include "reduce/block.cuh"

struct Corners {  // lesser and greater coordinates along two axes
    A low[2], high[2];
    __device__ __forceinline__ Corners(const T* box)
    {
#pragma unroll
        for (int axis = 0; axis < 2; ++axis) {
            const A a = A(box[axis]), b = A(box[axis + 2]);
            low[axis] = CENTRED ? a - b / A(2) : min(a, b);
            high[axis] = CENTRED ? a + b / A(2) : max(a, b);
        }
    }
    __device__ __forceinline__ A area() const
    {
        return (high[0] - low[0]) * (high[1] - low[1]);
    }
};

// Intersection over union; 0 where either has no area.
__device__ __forceinline__ A overlap(const Corners& a, const Corners& b)
{
    A shared = 1;
#pragma unroll
    for (int axis = 0; axis < 2; ++axis)
        shared *= max(min(a.high[axis], b.high[axis]) - max(a.low[axis], b.low[axis]), A(0));
    const A either = a.area() + b.area() - shared;
    return shared > 0 && a.area() > 0 && b.area() > 0 && either > 0 ? shared / either : A(0);
}

struct Best {  // a box, or -1, and its score
    A score;
    int at;
};

struct Better {  // ties go to the lower index; NaN comes last
    __device__ __forceinline__ Best operator()(Best a, Best b) const
    {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        const bool nan_a = a.score != a.score, nan_b = b.score != b.score;
        if (nan_a != nan_b) return nan_a ? b : a;
        if (nan_a || a.score == b.score) return a.at < b.at ? a : b;
        return a.score > b.score ? a : b;
    }
};

__device__ __forceinline__ Best over_all(Best own)  // every thread gets the best of the block
{
    __shared__ Best parts[WARPS];
#pragma unroll
    for (int other = 16; other; other /= 2) {
        const A score = __shfl_xor_sync(~0u, own.score, other);
        const int at = __shfl_xor_sync(~0u, own.at, other);
        own = Better()(own, Best{score, at});
    }
    __syncthreads();  // `parts` may still be read from the call before
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    own = parts[0];
    for (int i = 1; i < WARPS; ++i) own = Better()(own, parts[i]);
    return own;
}

// `dropped` has one byte per class and box; each is read and written by a single thread.
extern "C" __global__ void __launch_bounds__(THREADS)
suppress(const T* boxes, const T* scores, const long long* most, const float* limit,
         const float* least, uint8* dropped, int* kept, int* counts, int classes, int count, int room)
{
    const T* box = boxes + (long long)(blockIdx.x / classes) * count * 4;
    const T* score = scores + (long long)blockIdx.x * count;
    uint8* gone = dropped + (long long)blockIdx.x * count;
    const A threshold = limit ? A(*limit) : A(0);
    for (int i = threadIdx.x; i < count; i += THREADS)
        gone[i] = least && !(A(score[i]) > A(*least));
    const int wanted = most ? (int)min(*most, (long long)room) : 0;
    int found = 0;
    for (; found < wanted; ++found) {
        Best best = {A(0), -1};
        for (int i = threadIdx.x; i < count; i += THREADS)
            if (!gone[i]) best = Better()(best, Best{A(score[i]), i});
        best = over_all(best);
        if (best.at < 0) break;
        if (!threadIdx.x) kept[(long long)blockIdx.x * room + found] = best.at;
        const Corners chosen(box + 4LL * best.at);
        for (int i = threadIdx.x; i < count; i += THREADS)
            if (!gone[i])
                gone[i] = i == best.at || !(overlap(chosen, Corners(box + 4LL * i)) <= threshold);
    }
    if (!threadIdx.x) counts[blockIdx.x] = found;
}

// Rows (image, class, box), and their number. One block per class of an image.
extern "C" __global__ void __launch_bounds__(THREADS)
list_kept(const int* kept, const int* counts, long long* y, long long* total, int classes, int room)
{
    long long before = 0;
    for (int other = threadIdx.x; other < blockIdx.x; other += THREADS) before += counts[other];
    before = over_block(before, Plus());
    const int found = counts[blockIdx.x];
    for (int i = threadIdx.x; i < found; i += THREADS) {
        long long* row = y + 3 * (before + i);
        row[0] = blockIdx.x / classes;
        row[1] = blockIdx.x % classes;
        row[2] = kept[(long long)blockIdx.x * room + i];
    }
    if (!threadIdx.x && blockIdx.x == gridDim.x - 1) *total = before + found;
}
