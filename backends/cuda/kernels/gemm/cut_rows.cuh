// Rows of float32 in shared memory as two float16 numbers each, high + low, scaled by a power of two per row: see halves.cuh
// and step_f16x3.cuh for what is lost. Eight neighbouring threads cut a row.
//
// Infinities and NaNs are low parts, whose high parts are zero: they are multiplied once, by high parts.

// A part of a row that one of eight neighbouring threads cuts: four numbers of every 32. SIZE is a multiple of 16.
template <int SIZE> struct RowPart {
    static constexpr int COUNT = (SIZE + 31) / 32;
    float found[COUNT][4];

    __device__ __forceinline__ static int column_of(int i) { return i * 32 + threadIdx.x % 8 * 4; }
    __device__ __forceinline__ static bool has(int i) { return SIZE % 32 == 0 || column_of(i) < SIZE; }

    __device__ __forceinline__ void read(const float* row)
    {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const float4 four = has(i) ? *(const float4*)(row + column_of(i)) : make_float4(0, 0, 0, 0);
            found[i][0] = four.x, found[i][1] = four.y, found[i][2] = four.z, found[i][3] = four.w;
        }
    }

    // The bits of the greatest absolute value, or of the greatest finite one; NaNs are above infinities.
    template <bool FINITE> __device__ __forceinline__ u32 greatest() const
    {
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                most = max(most, __float_as_uint(FINITE ? finite_or_zero(found[i][e]) : found[i][e]) & 0x7fffffff);
        return most;
    }

    // Calls store(column, high parts, low parts) for every four numbers.
    template <bool ODD, typename Store> __device__ __forceinline__ void write(float scale, const Store& store) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (!has(i)) continue;
            u32 high[2], low[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float x = found[i][2 * e] * scale, y = found[i][2 * e + 1] * scale;
                const Halves halves = ODD ? Halves(x, y, finite_or_zero(x), finite_or_zero(y)) : Halves(x, y);
                high[e] = halves.high, low[e] = halves.low;
            }
            store(column_of(i), make_uint2(high[0], high[1]), make_uint2(low[0], low[1]));
        }
    }
};

__device__ __forceinline__ u32 over_eight_max(u32 x)
{
#pragma unroll
    for (int other = 1; other < 8; other *= 2) x = max(x, __shfl_xor_sync(~0u, x, other));
    return x;
}

// COUNT rows, of which eight threads have one each: where they are, and where their parts go.
template <int COUNT, typename Store> struct RowsToCut {
    const float* from[COUNT];
    Store store[COUNT];
};

template <int COUNT> struct Inverses {
    float at[COUNT];
};

// Cuts rows among which there are infinities or NaNs: code that hardly ever runs stays apart.
template <int SIZE, int COUNT, typename Store>
__device__ __noinline__ Inverses<COUNT> cut_odd(const RowsToCut<COUNT, Store> rows)
{
    RowPart<SIZE> parts[COUNT];
    Inverses<COUNT> inverses;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) parts[i].read(rows.from[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const u32 most = over_eight_max(parts[i].template greatest<false>());
        const u32 finite = over_eight_max(parts[i].template greatest<true>());
        // Where nothing is finite but zeros, what is multiplied by the inverse must not vanish.
        const RowScale by(finite || most < RowScale::INFINITE ? finite : __float_as_uint(1.0f));
        parts[i].template write<true>(by.scale, rows.store[i]);
        inverses.at[i] = by.inverse;
    }
    return inverses;
}

// Cuts rows, and returns the inverses of their scales. All threads of a warp must take part; they have read their rows
// before one of them stores.
template <int SIZE, int COUNT, typename Store>
__device__ __forceinline__ Inverses<COUNT> cut(const RowsToCut<COUNT, Store>& rows)
{
    RowPart<SIZE> parts[COUNT];
    Inverses<COUNT> inverses;
    u32 greatest[COUNT], most = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        parts[i].read(rows.from[i]);
        greatest[i] = parts[i].template greatest<false>();
        most = max(most, greatest[i]);
    }
    if (__any_sync(~0u, most >= RowScale::INFINITE)) return cut_odd<SIZE>(rows);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const RowScale by(over_eight_max(greatest[i]));
        parts[i].template write<false>(by.scale, rows.store[i]);
        inverses.at[i] = by.inverse;
    }
    return inverses;
}
