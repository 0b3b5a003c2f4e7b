// Barriers in shared memory (mbarrier), bulk copies that signal them, and reallocation of registers (Hopper).

__device__ __forceinline__ void mbarrier_init(u32 barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}

// Makes initialized barriers visible to all their users.
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(u32 barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}

// Arrives, and makes the barrier also expect this number of bytes.
__device__ __forceinline__ void mbarrier_expect_tx(u32 barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(barrier), "r"(bytes) : "memory");
}

// Arrives as soon as all copies that this thread has issued are complete.
__device__ __forceinline__ void mbarrier_arrive_cp_async(u32 barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}

// Waits until the phase of this parity is complete.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity)
{
    asm volatile("{\n.reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}"
                 :: "r"(barrier), "r"(parity) : "memory");
}

// Copies bytes, a multiple of 16, to shared memory; the barrier counts them.
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, int bytes, u32 barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Synchronizes COUNT neighbouring threads of the block (named barrier).
template <int COUNT> __device__ __forceinline__ void named_barrier_sync(int name)
{
    asm volatile("bar.sync %0, %1;" :: "r"(name), "n"(COUNT) : "memory");
}

template <int COUNT> __device__ __forceinline__ void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
