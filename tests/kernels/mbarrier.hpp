// What mbarrier.cuh does in PTX, on the host; tensor_cores.hpp comes before it.

// Begins a copy of so many bytes, of which `end` is all.
template <typename End> void begin_copy(u32 barrier, int bytes, const End& end)
{
    static_assert(sizeof(End) <= sizeof(Ending::given));
    Ending ending = {[](const char* given) { (*(const End*)given)(); }};
    memcpy(ending.given, &end, sizeof(End));
    begin_copy(barrier, bytes, ending);
}

inline void mbarrier_init_fence() {}
inline void mbarrier_arrive_cp_async(u32 barrier) { mbarrier_arrive(barrier); }
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
