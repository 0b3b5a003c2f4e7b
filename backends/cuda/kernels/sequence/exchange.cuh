// The states that blocks of a cluster send each other after every step of a recurrent layer: those of even and of odd steps have
// a place and a barrier each. Included after ptx/cluster.cuh and ptx/mbarrier.cuh.
//
// Compile-time: BLOCKS of a cluster.

struct Exchange {
    u32 barriers;  // two, of eight bytes
    int bytes;     // of a state, from all blocks

    // Waits until all blocks have begun, and their threads have written to shared memory.
    __device__ __forceinline__ void begin() const
    {
        if constexpr (BLOCKS > 1) {
            if (threadIdx.x == 0) {
                for (int odd = 0; odd < 2; ++odd) mbarrier_init(barriers + 8 * odd, 1);
                mbarrier_init_fence();
                for (int odd = 0; odd < 2; ++odd) mbarrier_expect_tx(barriers + 8 * odd, bytes);
            }
            cluster_arrive();
            cluster_wait();
        } else
            __syncthreads();
    }

    // The barrier of the state behind step t.
    __device__ __forceinline__ u32 behind(int t) const { return barriers + 8 * (1 - t % 2); }

    // Waits for the state behind step t.
    __device__ __forceinline__ void end(int t) const
    {
        if constexpr (BLOCKS > 1) {
            dsmem_wait(behind(t), t / 2 % 2);
            if (threadIdx.x == 0) mbarrier_expect_tx(behind(t), bytes);
        } else
            __syncthreads();
    }
};
