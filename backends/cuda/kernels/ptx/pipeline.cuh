// The pipeline of a warp-specialized kernel: stages in shared memory that producers fill and consumers release.
// Included after ptx/wgmma.cuh.

#include "ptx/mbarrier.cuh"

// Releases a stage for a warp that read it with ordinary loads, not with wgmma alone. These may still be under way when
// the warp arrives, even long after they were issued: the barrier does not order them before a copy of the async proxy.
__device__ __forceinline__ void release_what_was_loaded(u32 empty)
{
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty);
}

// The lane that may release what a warp has loaded as soon as it has arrived in registers, on bits of all of which `loaded`
// depends: any lane would do, but which one it is depends on them. That takes less time than a fence.
__device__ __forceinline__ bool is_first_behind(u32 loaded)
{
    return threadIdx.x % 32 == (__any_sync(~0u, (int)loaded < 0) ? 16 : 0);
}

// A full and an empty barrier for each of N stages.
template <int N> struct Pipeline {
    u32 start;

    __device__ __forceinline__ explicit Pipeline(u32 start) : start(start) {}
    __device__ __forceinline__ u32 full(int place) const { return start + place * 8; }
    __device__ __forceinline__ u32 empty(int place) const { return start + (N + place) * 8; }

    // Initializes the barriers with the numbers of arrivals that make a stage full and empty.
    __device__ __forceinline__ void begin(int fillers, int emptiers) const
    {
        for (int place = 0; place < N; ++place) {
            mbarrier_init(full(place), fillers);
            mbarrier_init(empty(place), emptiers);
        }
        mbarrier_init_fence();
    }
};

// The current stage, and the parity of its phase.
template <int N> struct PipelineState {
    int stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ void next()
    {
        if (++stage == N) {
            stage = 0;
            parity ^= 1;
        }
    }

    __device__ __forceinline__ PipelineState last() const
    {
        PipelineState found;
        found.stage = (stage == 0 ? N : stage) - 1;
        found.parity = parity ^ (stage == 0);
        return found;
    }

    __device__ __forceinline__ void skip(int count)
    {
        const int sum = stage + count, rounds = sum / N;
        stage = sum - rounds * N;
        parity ^= rounds & 1;
    }
};
