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
    memcpy(at_address(to), from, bytes);
    barriers_at[barrier].bytes -= bytes;
    barriers_at[barrier].arrive(0);
}
template <int NAME, int COUNT> void named_barrier_sync() { meet(meetings[32], 0, COUNT); }
template <int COUNT> void setmaxnreg_dec() {}
template <int COUNT> void setmaxnreg_inc() {}
inline void write_pair(u32 to, float x, float y)
{
    const float pair[2] = {x, y};
    memcpy(at_address(to), pair, sizeof(pair));
}

// sums[16][8 * COUNT] (+)= a[16][8] * b[8 * COUNT][8]' of tf32, or of sixteen terms of two bytes, by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b, bool add)
{
    show(a, 4);
    const int row = current % 32 / 4, column = current % 4 * 2;
    for (int j = 0; j < COUNT; ++j)
        for (int q = 0; q < 4; ++q) {
            float sum = add ? sums[j][q] : 0;
            for (int k = 0; k < 8; ++k) {
                const u32 left = of_lane(row * 4 + k % 4)[k / 4 * 2 + q / 2];
                const u32 right = word_of(b, j * 8 + column + q % 2, k);
                sum += F16X3 ? dot(left, right) : tf32(left) * tf32(right);
            }
            sums[j][q] = sum;
        }
    __syncwarp();
}
