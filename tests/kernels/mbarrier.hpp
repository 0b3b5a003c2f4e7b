// What mbarrier.cuh does in PTX, and products of tf32 and of split float32 of a Hopper, on the host; tensor_cores.hpp
// comes before it. Copies may end in any order, here as late as possible: the last one first, once all threads that wait
// for barriers have waited in vain.

#include <map>

struct Barrier {
    int arrivals, pending, bytes, copies;  // copies that have begun
    unsigned phase;

    void arrive(int count)
    {
        if (count > pending && copies) abort();  // the phase is not complete
        pending -= count;
        if (pending == 0 && bytes == 0) {
            pending = arrivals;
            ++phase;
        }
    }
};
inline std::map<u32, Barrier> barriers_at;

// What ends a copy, as a function and what it is given.
struct Copy {
    unsigned block[3];
    u32 barrier;
    int bytes;
    void (*end)(const char*);
    alignas(16) char given[256];
};
inline std::vector<Copy> copies;  // that have not ended
inline unsigned vain;             // waits since a thread went on

// Begins a copy of so many bytes, of which `end` is all.
template <typename End> void begin_copy(u32 barrier, int bytes, const End& end)
{
    static_assert(sizeof(End) <= sizeof(Copy::given));
    const auto call = [](const char* given) { (*(const End*)given)(); };
    copies.push_back({{blockIdx.x, blockIdx.y, blockIdx.z}, barrier, bytes, call});
    memcpy(copies.back().given, &end, sizeof(End));
    ++barriers_at[barrier].copies;
}

inline void end_copy()
{
    const Copy last = copies.back();
    copies.pop_back();
    last.end(last.given);
    Barrier& barrier = barriers_at[last.barrier];
    barrier.bytes -= last.bytes;
    barrier.arrive(0);
    --barrier.copies;
}

inline void mbarrier_init(u32 barrier, int count)
{
    const unsigned block[3] = {blockIdx.x, blockIdx.y, blockIdx.z};
    if (!copies.empty() && memcmp(copies.back().block, block, sizeof(block))) abort();  // its block has ended
    barriers_at[barrier] = {count, count};
}
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
    while (barriers_at[barrier].phase % 2 == parity) {
        if (++vain > 2 * blockDim.x && !copies.empty()) end_copy(), vain = 0;
        else if (vain < 1 << 25) give_way();
        else abort();  // no thread can go on
    }
    vain = 0;
}
inline void bulk_copy(u32 to, const void* from, int bytes, u32 barrier)
{
    assert_aligned(at_address(to), 16);
    assert_aligned(from, 16);
    if (bytes % 16) abort();
    begin_copy(barrier, bytes, [=] { memcpy(at_address(to), from, bytes); });
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
