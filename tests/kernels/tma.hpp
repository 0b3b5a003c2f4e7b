// What tma.cuh does in PTX, on the host; mbarrier.hpp and tensor_cores.hpp come before it.

struct TensorMap {  // as emulator.py makes them
    char* start;
    long long size, dims[4], strides[4], box[4];  // bytes of an element; strides in bytes
    short lower[2], upper[2];  // distances of the first and the last window from the image's edges
    int steps[2];              // of windows
};
static_assert(sizeof(TensorMap) == 128);

inline void copy_row(u32 row, const TensorMap& map, int x, int y, int z, int n, bool store)
{
    const int width = (int)(map.box[0] * map.size);
    for (int a = 0; a < map.box[0]; ++a) {
        char* const here = place_of(row + a * (int)map.size, width);
        char* const there = map.start + (x + a) * map.strides[0] + y * map.strides[1]
                            + z * map.strides[2] + n * map.strides[3];
        const int at[4] = {x + a, y, z, n};
        bool inside = true;
        for (int axis = 0; axis < 4; ++axis) inside &= at[axis] >= 0 && at[axis] < map.dims[axis];
        if (store && inside) memcpy(there, here, map.size);
        else if (!store && inside) memcpy(here, there, map.size);
        else if (!store) memset(here, 0, map.size);
    }
}

inline void copy_box(u32 place, const TensorMap& map, int x, int y, int z, int n, bool store)
{
    if (place % (8 * map.box[0] * map.size)) abort();  // the swizzle's period
    for (int d = 0; d < map.box[3]; ++d)
        for (int c = 0; c < map.box[2]; ++c)
            for (int b = 0; b < map.box[1]; ++b, place += map.box[0] * map.size)
                copy_row(place, map, x, y + b, z + c, n + d, store);
}

inline int bytes_of(const TensorMap& map)
{
    return (int)(map.size * map.box[0] * map.box[1] * map.box[2] * map.box[3]);
}

inline void bring(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, int n)
{
    begin_copy(barrier, bytes_of(*map), [=, map = *map] { copy_box(to, map, x, y, z, n, false); });
}
inline void prefetch_map(const TensorMap*) {}
inline void tma_load_2d(u32 to, const TensorMap* map, u32 barrier, int x, int y)
{
    bring(to, map, barrier, x, y, 0, 0);
}
inline void tma_load_3d(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z)
{
    bring(to, map, barrier, x, y, z, 0);
}
inline void tma_load_4d(u32 to, const TensorMap* map, u32 barrier, int channel, int x, int y, int n)
{
    bring(to, map, barrier, channel, x, y, n);
}
inline void tma_load_im2col(u32 to, const TensorMap* map, u32 barrier, int channel, int x, int y, int n,
                         int of_x, int of_y)
{
    const int end_x = map->dims[1] + map->upper[0], end_y = map->dims[2] + map->upper[1];
    if (to % 1024 || x < map->lower[0] || x >= end_x || y < map->lower[1] || y >= end_y) abort();
    begin_copy(barrier, bytes_of(*map), [=, map = *map] {
        int at_x = x, at_y = y, at_n = n;
        for (int pixel = 0; pixel < map.box[1]; ++pixel) {
            copy_row(to + pixel * map.box[0] * map.size, map, channel, at_x + of_x, at_y + of_y, at_n, false);
            if ((at_x += map.steps[0]) < end_x) continue;
            at_x = map.lower[0];
            if ((at_y += map.steps[1]) < end_y) continue;
            at_y = map.lower[1], ++at_n;
        }
    });
}
inline void tma_store_2d(const TensorMap* map, u32 from, int x, int y)
{
    copy_box(from, *map, x, y, 0, 0, true);
}
inline void tma_store_3d(const TensorMap* map, u32 from, int x, int y, int z)
{
    copy_box(from, *map, x, y, z, 0, true);
}
inline void tma_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int n)
{
    copy_box(from, *map, x, y, z, n, true);
}
inline void tma_store_wait() {}

inline void bulk_store(void* to, u32 from, int bytes)
{
    assert_aligned(to, 16);
    assert_aligned(at_address(from), 16);
    if (bytes % 16 || bytes <= 0) abort();
    memcpy(to, at_address(from), bytes);
}
inline void bulk_store_commit() {}

template <int COUNT> void bulk_store_wait() {}

// As that of tma.cuh, in its own order: bytes of a row, and of eight to the next; one that says
// nothing of them has rows of 128 bytes without gaps.
template <int WIDTH> uint64 smem_descriptor_as(int next)
{
    return (uint64)(next * WIDTH * 2) << 36 | (uint64)(WIDTH * 2) << 28;
}
