// What cp_async.cuh does in PTX for one warp, on the host; emulator.hpp comes before it.

typedef unsigned int u32;
constexpr int BK = 128 / sizeof(T);

// Addresses in shared memory have 32 bits: those that shared memory of this library differs in.
inline char shared_anchor;
inline u32 shared_address(const void* p) { return (u32)(size_t)p; }
inline char* at_address(u32 address)
{
    const size_t anchor = (size_t)&shared_anchor;
    return (char*)(anchor + (int)(address - (u32)anchor));
}

inline u32 swizzled(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

template <int N, bool ONCE = false> void cp_async(u32 to, const T* from, bool inside)
{
    assert_aligned(at_address(to), N * sizeof(T));
    memset(at_address(to), 0, N * sizeof(T));
    if (!inside) return;
    assert_aligned(from, N * sizeof(T));
    memcpy(at_address(to), from, N * sizeof(T));
}
inline void keep_single(u32 to, unsigned short bits) { memcpy(at_address(to), &bits, 2); }
template <int N> void fill(u32 to, u32 word)
{
    for (int i = 0; i < N; i += 4) memcpy(at_address(to + i), &word, 4);
}
inline void cp_async_commit() {}
template <typename V> void pin(V&) {}
template <int N> void cp_async_wait() {}

// What every thread of a block shows to the others of its warp.
inline u32 shown[1024][6];
inline void show(const u32* words, int count)
{
    memcpy(shown[current], words, 4 * count);
    __syncwarp();
}
inline const u32* of_lane(int lane) { return shown[current / 32 * 32 + lane]; }

inline void ldmatrix_x4(u32 (&found)[4], u32 address)
{
    show(&address, 1);
    const int lane = current % 32;
    for (int i = 0; i < 4; ++i)
        memcpy(&found[i], at_address(of_lane(i * 8 + lane / 4)[0]) + lane % 4 * 4, 4);
    __syncwarp();
}

inline void ldmatrix_x4_trans(u32 (&found)[4], u32 address)
{
    show(&address, 1);
    const int lane = current % 32;
    for (int i = 0; i < 4; ++i) {
        uint16_t two[2];
        for (int q = 0; q < 2; ++q)
            memcpy(&two[q], at_address(of_lane(i * 8 + lane % 4 * 2 + q)[0]) + lane / 4 * 2, 2);
        found[i] = two[0] | (u32)two[1] << 16;
    }
    __syncwarp();
}

// Of kernels without products.
#ifndef KIND
#define KIND "s8"
#endif
#ifndef F16X3
#define F16X3 0
#endif

// Elements of two bytes that are multiplied: those of `a`, unless float32 is split into others.
using Multiplied = std::conditional_t<KIND[0] == 'f', __half, std::conditional_t<KIND[0] == 'b', __nv_bfloat16, T>>;

inline u32 pair_of(float first, float second)
{
    const Multiplied two[2] = {Multiplied(first), Multiplied(second)};
    u32 found;
    memcpy(&found, two, 4);
    return found;
}
inline u32 pair_of_finite(float first, float second)
{
    const auto finite = [](float x) { return x != x ? x : min(max(x, -65504.0f), 65504.0f); };
    return pair_of(finite(first), finite(second));
}
inline u32 pair_fma(u32 a, u32 b, u32 c)
{
    Multiplied x[2], y[2], z[2];
    memcpy(x, &a, 4);
    memcpy(y, &b, 4);
    memcpy(z, &c, 4);
    return pair_of(float(x[0]) * float(y[0]) + float(z[0]), float(x[1]) * float(y[1]) + float(z[1]));
}
inline u32 twice(u32 word, bool upper) { return (upper ? word >> 16 : word & 0xffff) * 0x10001u; }
inline u32 and_or(u32 bits, u32 mask, u32 more) { return (bits & mask) | more; }
inline float max_or_nan(float a, float b) { return a != a || b != b ? NAN : a < b ? b : a; }
inline float exp2_of(float x) { return std::exp2(x); }

inline float2 halves_of(u32 pair)
{
    Multiplied two[2];
    memcpy(two, &pair, 4);
    return make_float2(float(two[0]), float(two[1]));
}

// A thread's sums of a product of warps: of two rows, each with two columns.
typedef float FourSums __attribute__((vector_size(16)));
inline FourSums products_of(float row, float next_row, float column, float next_column)
{
    return FourSums{row, row, next_row, next_row} * FourSums{column, next_column, column, next_column};
}

// The same of two neighbouring elements each, added up.
inline FourSums pair_products(u32 row, u32 next_row, u32 column, u32 next_column)
{
    const float2 a = halves_of(row), b = halves_of(next_row), x = halves_of(column), y = halves_of(next_column);
    return products_of(a.x, b.x, x.x, y.x) + products_of(a.y, b.y, x.y, y.y);
}

template <typename Term> void accumulate(float (&sums)[4], Term term)
{
    FourSums total;
    memcpy(&total, sums, sizeof(total));
    term(total);
    memcpy(sums, &total, sizeof(total));
}

// Calls take(words of a, words of b, words of b) for each four words of a row of a, and of a column of b,
// that stand first in the two halves: those of a thread's two rows, and of its two columns.
template <typename Take>
void each_part(const u32 (&a)[4], u32 b0, u32 b1, Take take)
{
    const u32 words[6] = {a[0], a[1], a[2], a[3], b0, b1};
    show(words, 6);
    const int row = current % 32 / 4 * 4, column = current % 4 * 2 * 4;
    for (int part = 0; part < 4; ++part)
        take(of_lane(row + part), of_lane(column + part) + 4, of_lane(column + 4 + part) + 4);
    __syncwarp();
}

inline void mma_m16n8k16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    accumulate(sums, [&](FourSums& total) {
        each_part(a, b0, b1, [&](const u32* of_a, const u32* x, const u32* y) {
            total += pair_products(of_a[0], of_a[1], x[0], y[0]) + pair_products(of_a[2], of_a[3], x[1], y[1]);
        });
    });
}

// Sums in float16 are rounded after every sixteen terms; a GPU may round more often.
inline void mma_m16n8k16(u32 (&sums)[2], const u32 (&a)[4], u32 b0, u32 b1)
{
    float wide[4];
    for (int q = 0; q < 4; q += 2) {
        const float2 two = halves_of(sums[q / 2]);
        wide[q] = two.x, wide[q + 1] = two.y;
    }
    mma_m16n8k16(wide, a, b0, b1);
    for (int q = 0; q < 4; q += 2) sums[q / 2] = pair_of(wide[q], wide[q + 1]);
}

// What the tensor cores see of four bytes.
inline float tf32(u32 bits)
{
    bits &= 0xffffe000;
    float found;
    memcpy(&found, &bits, 4);
    return found;
}

inline FourSums tf32_products(u32 row, u32 next_row, u32 column, u32 next_column)
{
    return products_of(tf32(row), tf32(next_row), tf32(column), tf32(next_column));
}

inline void mma_m16n8k8(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    accumulate(sums, [&](FourSums& total) {
        each_part(a, b0, b1, [&](const u32* of_a, const u32* x, const u32* y) {
            total += tf32_products(of_a[0], of_a[1], x[0], y[0]) + tf32_products(of_a[2], of_a[3], x[1], y[1]);
        });
    });
}

// The product of four neighbouring bytes with four others, added up; KIND says which have signs: "u8.s8", or "s8".
constexpr char RIGHT = KIND[sizeof KIND > 4 ? 3 : 0];

inline u32 dot_of_bytes(u32 a, u32 b)
{
    int sum = 0;
    for (int bit = 0; bit < 32; bit += 8) {
        const int left = a >> bit & 255, right = b >> bit & 255;
        sum += (KIND[0] == 's' ? (int8_t)left : left) * (RIGHT == 's' ? (int8_t)right : right);
    }
    return (u32)sum;
}

inline void mma_m16n8k32(int (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    each_part(a, b0, b1, [&](const u32* of_a, const u32* x, const u32* y) {
        for (int q = 0; q < 4; ++q) {
            const u32* of_b = q % 2 ? y : x;
            const u32 more = dot_of_bytes(of_a[q / 2], of_b[0]) + dot_of_bytes(of_a[2 + q / 2], of_b[1]);
            sums[q] = (int)((u32)sums[q] + more);  // wraps around
        }
    });
}

// ── Hopper: products are done when they are begun ───────────────────────────────────────────────

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N> void wgmma_wait() {}
template <typename S> void settle(S&) {}
inline void fence_proxy_async() {}

// Where a tile begins, in sixteens of bytes. It is a multiple of 1024 bytes; what is added to it is the
// first chunk of each row.
inline uint64 smem_descriptor(u32 address) { return address >> 4; }

// Eight words of a row of a tile, from the chunk on that `form` says.
struct EightWords {
    u32 at[8];
};
inline EightWords words_of(uint64 form, int row)
{
    const u32 tile = (u32)(form & ~(uint64)7) << 4;
    const int next = form >> 36 ? (int)(form >> 36) : 1024;
    EightWords found;
    for (int i = 0; i < 2; ++i)
        memcpy(found.at + 4 * i, at_address(tile + row / 8 * next + swizzled(row % 8, (int)(form & 7) + i)), 16);
    return found;
}

// Of the 16 x 8 sums of a warp's product, a thread has those of this row and of the eighth after it, in
// this column and the next one.
inline int own_row() { return current % 32 / 4; }
inline int own_column() { return current % 4 * 2; }

// sums[16][8 * COUNT] (+)= a[16][8] * b[8 * COUNT][8]' of tf32, or of sixteen terms of two bytes, by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b, bool add)
{
    show(a, 4);
    u32 rows[2][8];
    for (int k = 0; k < 8; ++k)
        for (int i = 0; i < 2; ++i) rows[i][k] = of_lane(own_row() * 4 + k % 4)[k / 4 * 2 + i];
    for (int j = 0; j < COUNT; ++j) {
        const int column = j * 8 + own_column();
        const EightWords columns[2] = {words_of(b, column), words_of(b, column + 1)};
        if (!add) memset(sums[j], 0, sizeof(sums[j]));
        accumulate(sums[j], [&](FourSums& total) {
            for (int k = 0; k < 8; ++k) {
                const u32 x = columns[0].at[k], y = columns[1].at[k];
                total += F16X3 ? pair_products(rows[0][k], rows[1][k], x, y) : tf32_products(rows[0][k], rows[1][k], x, y);
            }
        });
    }
    __syncwarp();
}

// sums[16][8 * COUNT] += a[16][32] * b[8 * COUNT][32]', bytes, by each of four warps
template <int COUNT> void wgmma(int (&sums)[COUNT][4], uint64 a, uint64 b)
{
    const int row = current / 32 % 4 * 16 + own_row();
    const EightWords rows[2] = {words_of(a, row), words_of(a, row + 8)};
    for (int j = 0; j < COUNT; ++j) {
        const int column = j * 8 + own_column();
        const EightWords columns[2] = {words_of(b, column), words_of(b, column + 1)};
        for (int q = 0; q < 4; ++q)
            for (int k = 0; k < 8; ++k)
                sums[j][q] = (int)((u32)sums[j][q] + dot_of_bytes(rows[q / 2].at[k], columns[q % 2].at[k]));
    }
    __syncwarp();
}

// The byte at an address of a tile of rows of WIDTH bytes, which lie in swizzled order.
inline char* place_of(u32 address, int width)
{
    return at_address(address ^ (address >> 7 & (width / 16 - 1)) << 4);
}

// Element `column` of a row of a tile, which `form` describes with the place to read from. Eight
// elements, from a multiple of eight on, lie side by side.
inline const char* element(uint64 form, int row, int column)
{
    const int width = form >> 28 ? (int)(form >> 28 & 255) : 128;
    const int next = form >> 28 ? (int)(form >> 36 & 0xffff) : 1024;
    const u32 tile = (u32)(form & ((1 << 28) - 1)) << 4;
    const int place = width == 16 ? column / 8 * (int)(form >> 52 << 4) + column % 8 * 2 : column * 2;
    return place_of(tile + row / 8 * next + row % 8 * width + place, width);
}

// What a thread multiplies: sixteen terms of two rows of `a`, or of two columns of `b`.
struct TermsOfTwo {
    float of[2][16];
};

typedef short EightHalves __attribute__((vector_size(16)));
typedef float EightFloats __attribute__((vector_size(32)));
template <typename N> void widen(const char* from, float* to)
{
#ifdef __F16C__
    if (std::is_same_v<N, __half>) {
        EightHalves narrow;
        memcpy(&narrow, from, sizeof(narrow));
        const EightFloats wide = __builtin_ia32_vcvtph2ps256(narrow);
        memcpy(to, &wide, sizeof(wide));
        return;
    }
#endif
    N eight[8];
    memcpy(eight, from, sizeof(eight));
    for (int e = 0; e < 8; ++e) to[e] = float(eight[e]);
}

// Two rows of a tile, `apart` from each other; those of `b` are columns.
inline TermsOfTwo rows_of(uint64 form, int row, int apart)
{
    TermsOfTwo found;
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 16; k += 8) widen<Multiplied>(element(form, row + i * apart, k), found.of[i] + k);
    return found;
}

// The rows of `a` that a thread has sums of, in shared memory, or in the registers of its warp.
inline TermsOfTwo own_rows(uint64 a) { return rows_of(a, current / 32 % 4 * 16 + own_row(), 8); }
template <typename N> TermsOfTwo own_rows(const u32 (&a)[4])
{
    show(a, 4);
    TermsOfTwo found;
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 16; k += 2) {
            N two[2];
            memcpy(two, &of_lane(own_row() * 4 + k % 8 / 2)[k / 8 * 2 + i], 4);
            found.of[i][k] = float(two[0]), found.of[i][k + 1] = float(two[1]);
        }
    return found;
}

// Two columns of a tile whose rows are terms.
inline TermsOfTwo columns_of(uint64 form, int column)
{
    TermsOfTwo found;
    for (int k = 0; k < 16; ++k) {
        Multiplied two[2];
        memcpy(two, element(form, k, column), 4);
        found.of[0][k] = float(two[0]), found.of[1][k] = float(two[1]);
    }
    return found;
}

inline void add_products(float (&sums)[4], const TermsOfTwo& rows, const TermsOfTwo& columns)
{
    accumulate(sums, [&](FourSums& total) {
        for (int k = 0; k < 16; ++k)
            total += products_of(rows.of[0][k], rows.of[1][k], columns.of[0][k], columns.of[1][k]);
    });
}

// sums[16][8 * COUNT] += a[16][16] * b[8 * COUNT][16]', by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const TermsOfTwo& rows, uint64 b)
{
    for (int j = 0; j < COUNT; ++j) add_products(sums[j], rows, rows_of(b, j * 8 + own_column(), 1));
    __syncwarp();
}
template <int COUNT> void wgmma(float (&sums)[COUNT][4], uint64 a, uint64 b) { wgmma(sums, own_rows(a), b); }
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b)
{
    wgmma(sums, own_rows<T>(a), b);
}

// The same, in place of the sums unless `add`
template <int COUNT> void wgmma(float (&sums)[COUNT][4], uint64 a, uint64 b, int add)
{
    if (!add) memset(sums, 0, sizeof(sums));
    wgmma(sums, a, b);
}

template <int STRIDE> uint64 smem_descriptor_apart(u32 address)
{
    return smem_descriptor(address) | (uint64)128 << 28 | (uint64)STRIDE << 36;
}

template <int NEXT, int STRIDE> uint64 smem_descriptor_of_words(u32 address)
{
    return smem_descriptor(address) | (uint64)16 << 28 | (uint64)STRIDE << 36 | (uint64)(NEXT >> 4) << 52;
}

template <int STRIP> uint64 smem_descriptor_across(u32 address)
{
    return smem_descriptor(address) | (uint64)STRIP << 36;
}

// sums[16][8 * COUNT] += a[16][16] * b[16][8 * COUNT], by each of four warps
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], uint64 a, uint64 b)
{
    const uint64 first = b & ((1 << 28) - 1), strip = b >> 36 >> 4;
    const TermsOfTwo rows = own_rows(a);
    for (int j = 0; j < COUNT; ++j)
        add_products(sums[j], rows, columns_of(first + j / 8 * strip, j % 8 * 8 + own_column()));
    __syncwarp();
}

// The same; `a` in registers
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b)
{
    const TermsOfTwo rows = own_rows<Multiplied>(a);
    for (int j = 0; j < COUNT; ++j) add_products(sums[j], rows, columns_of(b, j * 8 + own_column()));
    __syncwarp();
}

// The same, in place of the sums unless `add`
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b, int add)
{
    if (!add) memset(sums, 0, sizeof(sums));
    wgmma_across(sums, a, b);
}

// ── clusters ─────────────────────────────────────────────────────────────────────────────────────

inline size_t place_in_shared(u32 address) { return at_address(address) - dynamic_shared; }

inline void cluster_sync()
{
    __syncthreads();
    if (threadIdx.x == 0) leave_behind(dynamic_shared);
    __syncthreads();
}

inline float4 dsmem_load(u32 address, int block)
{
    float4 found = {};
    if (const char* there = left_behind(block)) memcpy(&found, there + place_in_shared(address), sizeof(found));
    return found;
}

inline void dsmem_expect(u32, int) {}
inline void dsmem_send(u32 address, u32, int block, float x) { send(block, place_in_shared(address), x); }
inline void dsmem_send(u32 address, u32, int block, float2 x)
{
    assert_aligned(at_address(address), sizeof(x));
    dsmem_send(address, 0, block, x.x);
    dsmem_send(address + 4, 0, block, x.y);
}

inline void dsmem_send(u32 address, u32 barrier, int block, float4 x)
{
    assert_aligned(at_address(address), sizeof(x));
    dsmem_send(address, barrier, block, float2{x.x, x.y});
    dsmem_send(address + 8, barrier, block, float2{x.z, x.w});
}

inline void cluster_arrive() {}
inline void cluster_arrive_relaxed() {}

inline void cluster_wait()
{
    __syncthreads();
    if (threadIdx.x == 0) receive(dynamic_shared);
    __syncthreads();
}

inline void dsmem_wait(u32, u32) { cluster_wait(); }
inline void dsmem_wait(u32) { receive_all(dynamic_shared); }
