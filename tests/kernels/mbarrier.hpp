// What mbarrier.cuh does in PTX, and products of tf32 and of split float32 of a Hopper, on the host; tensor_cores.hpp
// comes before it. Copies are there at once.

#include <map>

struct Barrier {
    int arrivals, pending, bytes;
    unsigned phase;

    void arrive(int count)
    {
        pending -= count;
        if (pending == 0 && bytes == 0) {
            pending = arrivals;
            ++phase;
        }
    }
};
inline std::map<u32, Barrier> barriers_at;

inline void mbarrier_init(u32 barrier, int count) { barriers_at[barrier] = {count, count, 0, 0}; }
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(u32 barrier) { barriers_at[barrier].arrive(1); }
inline void mbarrier_arrive_cp_async(u32 barrier) { mbarrier_arrive(barrier); }
inline void mbarrier_expect_tx(u32 barrier, int bytes)
{
    barriers_at[barrier].bytes += bytes;
    barriers_at[barrier].arrive(1);
}
inline void mbarrier_wait(u32 barrier, u32 parity)
{
    while (barriers_at[barrier].phase % 2 == parity)
        give_way();
}
inline void bulk_copy(u32 to, const void* from, int bytes, u32 barrier)
{
    assert_aligned(at_address(to), 16);
    assert_aligned(from, 16);
    if (bytes % 16) abort();
    memcpy(at_address(to), from, bytes);
    barriers_at[barrier].bytes -= bytes;
    barriers_at[barrier].arrive(0);
}
// Threads that share a named barrier are COUNT neighbours.
template <int COUNT> void named_barrier_sync(int name)
{
    const unsigned first = current / COUNT * COUNT;
    meet(named[name], first, first + COUNT);
}
template <int COUNT> void setmaxnreg_dec() {}
template <int COUNT> void setmaxnreg_inc() {}
inline void write_pair(u32 to, float x, float y)
{
    const float pair[2] = {x, y};
    memcpy(at_address(to), pair, sizeof(pair));
}
