// What bulk.cuh does in PTX, and the products of 16-bit floats of a Hopper, on the host; barriers.hpp
// comes before it. Only rows of 128 bytes, whose chunks lie in swizzled order.

struct TensorMap {  // as emulator.py makes them
    char* start;
    long long size, dims[4], strides[4], box[4];  // bytes of an element; strides in bytes
    long long unused[2];
};
static_assert(sizeof(TensorMap) == 128);

inline void copy_box(u32 place, const TensorMap& map, int x, int y, int z, int n, bool store)
{
    const int per_chunk = 16 / (int)map.size;
    if (map.box[0] * map.size != 128) abort();
    int row = 0;
    for (int d = 0; d < map.box[3]; ++d)
        for (int c = 0; c < map.box[2]; ++c)
            for (int b = 0; b < map.box[1]; ++b, ++row)
                for (int a = 0; a < map.box[0]; ++a) {
                    char* const here = at_address(place + swizzled(row, a / per_chunk))
                                       + a % per_chunk * map.size;
                    char* const there = map.start + (x + a) * map.strides[0] + (y + b) * map.strides[1]
                                        + (z + c) * map.strides[2] + (n + d) * map.strides[3];
                    const bool inside = x + a < map.dims[0] && y + b < map.dims[1]
                                        && z + c < map.dims[2] && n + d < map.dims[3];
                    if (store && inside) memcpy(there, here, map.size);
                    else if (!store && inside) memcpy(here, there, map.size);
                    else if (!store) memset(here, 0, map.size);
                }
}

inline void bring(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, int n)
{
    copy_box(to, *map, x, y, z, n, false);
    barriers_at[barrier].bytes -= (int)(128 * map->box[1] * map->box[2] * map->box[3]);
    barriers_at[barrier].arrive(0);
}
inline void bulk_2d(u32 to, const TensorMap* map, u32 barrier, int x, int y)
{
    bring(to, map, barrier, x, y, 0, 0);
}
inline void bulk_4d(u32 to, const TensorMap* map, u32 barrier, int channel, int x, int y, int n)
{
    bring(to, map, barrier, channel, x, y, n);
}
inline void bulk_store_2d(const TensorMap* map, u32 from, int x, int y)
{
    copy_box(from, *map, x, y, 0, 0, true);
}
inline void bulk_store_4d(const TensorMap* map, u32 from, int x, int y, int z, int n)
{
    copy_box(from, *map, x, y, z, n, true);
}
inline void bulk_stored() {}
inline void show_to_products() {}
template <typename S> void settle(S&) {}

// ── products ──────────────────────────────────────────────────────────────────────────────────────

// Element `column` of a row of a tile, which `form` describes with the first chunk to read.
inline float element(uint64 form, int row, int column)
{
    T found;
    const u32 tile = (u32)(form & ~(uint64)7) << 4;
    const u32 at = tile + swizzled(row, (int)(form & 7) + column / 8) + column % 8 * 2;
    memcpy(&found, at_address(at), 2);
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

// sums[16][8 * COUNT] += a[16][16] * b[16][8 * COUNT], by each of four warps; `a` in registers
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
