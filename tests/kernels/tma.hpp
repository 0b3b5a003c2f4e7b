// What tma.cuh does in PTX, and the products of 16-bit floats of a Hopper, on the host; barriers.hpp
// comes before it.

struct TensorMap {  // as emulator.py makes them
    char* start;
    long long size, dims[4], strides[4], box[4];  // bytes of an element; strides in bytes
    short lower[2], upper[2];  // distances of the first and the last window from the image's edges
    int steps[2];              // of windows
};
static_assert(sizeof(TensorMap) == 128);

// The byte at an address of a tile of rows of WIDTH bytes, which lie in swizzled order.
inline char* place_of(u32 address, int width)
{
    return at_address(address ^ (address >> 7 & (width / 16 - 1)) << 4);
}

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
    if (place % 1024) abort();
    for (int d = 0; d < map.box[3]; ++d)
        for (int c = 0; c < map.box[2]; ++c)
            for (int b = 0; b < map.box[1]; ++b, place += map.box[0] * map.size)
                copy_row(place, map, x, y + b, z + c, n + d, store);
}

inline void arrived(u32 barrier, const TensorMap& map)
{
    const long long rows = map.box[1] * map.box[2] * map.box[3];
    barriers_at[barrier].bytes -= (int)(map.box[0] * map.size * rows);
    barriers_at[barrier].arrive(0);
}

inline void bring(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, int n)
{
    copy_box(to, *map, x, y, z, n, false);
    arrived(barrier, *map);
}
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
    for (int pixel = 0; pixel < map->box[1]; ++pixel, to += map->box[0] * map->size) {
        copy_row(to, *map, channel, x + of_x, y + of_y, n, false);
        if ((x += map->steps[0]) < end_x) continue;
        x = map->lower[0];
        if ((y += map->steps[1]) < end_y) continue;
        y = map->lower[1], ++n;
    }
    arrived(barrier, *map);
}
inline void tma_store_2d(const TensorMap* map, u32 from, int x, int y)
{
    copy_box(from, *map, x, y, 0, 0, true);
}
inline void tma_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int n)
{
    copy_box(from, *map, x, y, z, n, true);
}
inline void tma_store_wait() {}

// ── products ──────────────────────────────────────────────────────────────────────────────────────

// As that of tma.cuh, in an order of its own: bytes of a row, and of eight to the next; one that says
// nothing of them has rows of 128 bytes without gaps.
template <int WIDTH> uint64 smem_descriptor_as(int next)
{
    return (uint64)(next * WIDTH * 2) << 36 | (uint64)(WIDTH * 2) << 28;
}

// Element `column` of a row of a tile, which `form` describes with the place to read from.
inline float element(uint64 form, int row, int column)
{
    T found;
    const int width = form >> 28 ? (int)(form >> 28 & 255) : 128;
    const int next = form >> 28 ? (int)(form >> 36) : 1024;
    const u32 tile = (u32)(form & ((1 << 28) - 1)) << 4;
    memcpy(&found, place_of(tile + row / 8 * next + row % 8 * width + column * 2, width), 2);
    return float(found);
}

// sums[16][8 * COUNT] += a[16][16] * b[8 * COUNT][16]', by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], uint64 a, uint64 b)
{
    const int row = current / 32 % 4 * 16 + current % 32 / 4, column = current % 4 * 2;
    for (int j = 0; j < COUNT; ++j)
        for (int q = 0; q < 4; ++q)
            for (int k = 0; k < 16; ++k)
                sums[j][q] += element(a, row + q / 2 * 8, k) * element(b, j * 8 + column + q % 2, k);
    __syncwarp();
}

template <int STRIP> uint64 smem_descriptor_across(u32 address)
{
    return smem_descriptor(address) | (uint64)STRIP << 36;
}

// sums[16][8 * COUNT] += a[16][16] * b[16][8 * COUNT], by each of four warps
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], uint64 a, uint64 b)
{
    const int row = current / 32 % 4 * 16 + current % 32 / 4, column = current % 4 * 2;
    const uint64 first = b & ((1 << 28) - 1), strip = b >> 36 >> 4;
    for (int j = 0; j < COUNT; ++j)
        for (int q = 0; q < 4; ++q)
            for (int k = 0; k < 16; ++k)
                sums[j][q] += element(a, row + q / 2 * 8, k)
                              * element(first + j / 8 * strip, k, j % 8 * 8 + column + q % 2);
    __syncwarp();
}

// The same; `a` in registers
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b)
{
    show(a, 4);
    const int row = current % 32 / 4, column = current % 4 * 2;
    for (int j = 0; j < COUNT; ++j)
        for (int q = 0; q < 4; ++q)
            for (int k = 0; k < 16; ++k) {
                T two[2];
                memcpy(two, &of_lane(row * 4 + k % 8 / 2)[k / 8 * 2 + q / 2], 4);
                sums[j][q] += float(two[k % 2]) * element(b, k, j * 8 + column + q % 2);
            }
    __syncwarp();
}
