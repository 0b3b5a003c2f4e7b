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

// Words that the lanes of a warp show to one another, in turns as `exchanged`.
struct Shown {
    u32 words[6][32];

    // Copies one of them of four neighbouring lanes.
    void of_four(int word, int lane, u32* to) const { memcpy(to, words[word] + lane, 16); }
};
inline Shown shown[2][32];
template <int COUNT> const Shown& show(const u32 (&words)[COUNT])
{
    Shown& all = shown[turn()][current / 32];
    for (int i = 0; i < COUNT; ++i) all.words[i][current % 32] = words[i];
    __syncwarp();
    return all;
}

inline void ldmatrix_x4(u32 (&found)[4], u32 address)
{
    const u32* addresses = show({address}).words[0];
    const int lane = current % 32;
    for (int i = 0; i < 4; ++i) memcpy(&found[i], at_address(addresses[i * 8 + lane / 4]) + lane % 4 * 4, 4);
    __syncwarp();
}

inline void ldmatrix_x4_trans(u32 (&found)[4], u32 address)
{
    const u32* addresses = show({address}).words[0];
    const int lane = current % 32;
    for (int i = 0; i < 4; ++i) {
        uint16_t two[2];
        for (int q = 0; q < 2; ++q)
            memcpy(&two[q], at_address(addresses[i * 8 + lane % 4 * 2 + q]) + lane / 4 * 2, 2);
        found[i] = two[0] | (u32)two[1] << 16;
    }
    __syncwarp();
}

inline u32 transposed(u32 pair)
{
    const u32* pairs = show({pair}).words[0];
    const int lane = current % 32;
    u32 found = 0;
    for (int q = 0; q < 2; ++q)
        found |= (pairs[(lane % 4 * 2 + q) * 4 + lane / 8] >> lane / 4 % 2 * 16 & 0xffff) << q * 16;
    __syncwarp();
    return found;
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

typedef short EightHalves __attribute__((vector_size(16)));
typedef uint16_t EightShorts __attribute__((vector_size(16)));
typedef u32 EightWords __attribute__((vector_size(32)));
typedef float EightFloats __attribute__((vector_size(32)));
typedef float FourFloats __attribute__((vector_size(16)));

// Eight elements of two bytes.
template <typename N> EightFloats widened(const void* from)
{
#ifdef __F16C__
    if (std::is_same_v<N, __half>) {
        EightHalves narrow;
        memcpy(&narrow, from, sizeof(narrow));
        return __builtin_ia32_vcvtph2ps256(narrow);
    }
#endif
    if (std::is_same_v<N, __nv_bfloat16>) {
        EightShorts narrow;
        memcpy(&narrow, from, sizeof(narrow));
        return (EightFloats)(__builtin_convertvector(narrow, EightWords) << 16);
    }
    N eight[8];
    memcpy(eight, from, sizeof(eight));
    EightFloats found;
    for (int e = 0; e < 8; ++e) found[e] = float(eight[e]);
    return found;
}

// What the tensor cores see of eight words.
inline EightFloats tf32(const u32* from)
{
    EightWords words;
    memcpy(&words, from, sizeof(words));
    return (EightFloats)(words & 0xffffe000);
}

// What a thread multiplies: `8 * PARTS` terms of two rows, or of two columns.
template <int PARTS> struct TermsOfTwo {
    EightFloats of[2][PARTS];
};

// Adds the products of two rows with two columns to a thread's sums of a product of warps.
template <int PARTS>
inline void add_products(float (&sums)[4], const TermsOfTwo<PARTS>& rows, const TermsOfTwo<PARTS>& columns)
{
    FourFloats parts[4];
    for (int q = 0; q < 4; ++q) {
        const EightFloats *row = rows.of[q / 2], *column = columns.of[q % 2];
        EightFloats eight = row[0] * column[0];
        for (int p = 1; p < PARTS; ++p) eight += row[p] * column[p];
        parts[q] = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    }
    FourFloats two[2];
    for (int i = 0; i < 2; ++i) {
        const FourFloats a = parts[2 * i], b = parts[2 * i + 1];
        two[i] = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
    }
    FourFloats total;
    memcpy(&total, sums, sizeof(total));
    total += __builtin_shufflevector(two[0], two[1], 0, 2, 4, 6) + __builtin_shufflevector(two[0], two[1], 1, 3, 5, 7);
    memcpy(sums, &total, sizeof(total));
}

// Words of two rows, or of two columns.
struct WordsOfTwo {
    u32 of[2][8];
};

// Those of a thread's rows of `a`, and of its columns of `b`.
struct WarpWords {
    WordsOfTwo rows, columns;
};
inline WarpWords warp_words(const u32 (&a)[4], u32 b0, u32 b1)
{
    const Shown& all = show({a[0], a[1], a[2], a[3], b0, b1});
    const int row = current % 32 / 4 * 4, column = current % 4 * 2 * 4;
    WarpWords found;
    for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) {
            all.of_four(2 * half + i, row, found.rows.of[i] + 4 * half);
            all.of_four(4 + half, column + 4 * i, found.columns.of[i] + 4 * half);
        }
    return found;
}

template <typename N> TermsOfTwo<2> widened_two(const WordsOfTwo& words)
{
    TermsOfTwo<2> found;
    for (int i = 0; i < 2; ++i)
        for (int p = 0; p < 2; ++p) found.of[i][p] = widened<N>(words.of[i] + 4 * p);
    return found;
}

inline TermsOfTwo<1> tf32_two(const WordsOfTwo& words) { return {{{tf32(words.of[0])}, {tf32(words.of[1])}}}; }

inline void mma_m16n8k16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    const WarpWords words = warp_words(a, b0, b1);
    add_products(sums, widened_two<Multiplied>(words.rows), widened_two<Multiplied>(words.columns));
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

inline void mma_m16n8k8(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    const WarpWords words = warp_words(a, b0, b1);
    add_products(sums, tf32_two(words.rows), tf32_two(words.columns));
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

// Of 32 bytes each.
inline void add_dots(int (&sums)[4], const WordsOfTwo& rows, const WordsOfTwo& columns)
{
    for (int q = 0; q < 4; ++q) {
        u32 more = 0;
        for (int k = 0; k < 8; ++k) more += dot_of_bytes(rows.of[q / 2][k], columns.of[q % 2][k]);
        sums[q] = (int)((u32)sums[q] + more);  // wraps around
    }
}

inline void mma_m16n8k32(int (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    const WarpWords words = warp_words(a, b0, b1);
    add_dots(sums, words.rows, words.columns);
}

// ── Hopper: threads have done their products when they wait for them ────────────────────────────

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N> void wgmma_wait() { __syncwarp(); }
template <typename S> void settle(S&) {}
inline void fence_proxy_async() {}

// Where a tile begins, in sixteens of bytes. It is a multiple of 1024 bytes; what is added to it is the
// first chunk of each row.
inline uint64 smem_descriptor(u32 address) { return address >> 4; }

// Reads eight words of a row of a tile, from the chunk on that `form` says.
inline void words_of(uint64 form, int row, u32 (&found)[8])
{
    const u32 tile = (u32)(form & ~(uint64)7) << 4;
    const int next = form >> 36 ? (int)(form >> 36) : 1024;
    for (int i = 0; i < 2; ++i)
        memcpy(found + 4 * i, at_address(tile + row / 8 * next + swizzled(row % 8, (int)(form & 7) + i)), 16);
}

// Of two rows; those of `b` are columns.
inline WordsOfTwo words_of_two(uint64 form, int row, int apart)
{
    WordsOfTwo found;
    for (int i = 0; i < 2; ++i) words_of(form, row + i * apart, found.of[i]);
    return found;
}

// Of the 16 x 8 sums of a warp's product, a thread has those of this row and of the eighth after it, in
// this column and the next one.
inline int own_row() { return current % 32 / 4; }
inline int own_column() { return current % 4 * 2; }

// Those rows of `a` in the registers of a warp.
inline WordsOfTwo own_words(const u32 (&a)[4])
{
    const Shown& all = show(a);
    WordsOfTwo found;
    for (int i = 0; i < 2; ++i)
        for (int half = 0; half < 2; ++half) all.of_four(2 * half + i, own_row() * 4, found.of[i] + 4 * half);
    return found;
}

// sums[16][8 * COUNT] (+)= a[16][8] * b[8 * COUNT][8]' of tf32, or of sixteen terms of two bytes, by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b, bool add)
{
    const WordsOfTwo rows = own_words(a);
    if (!add) memset(sums, 0, sizeof(sums));
    for (int j = 0; j < COUNT; ++j) {
        const WordsOfTwo columns = words_of_two(b, j * 8 + own_column(), 1);
        if (F16X3) add_products(sums[j], widened_two<Multiplied>(rows), widened_two<Multiplied>(columns));
        else add_products(sums[j], tf32_two(rows), tf32_two(columns));
    }
}

// sums[16][8 * COUNT] += a[16][32] * b[8 * COUNT][32]', bytes, by each of four warps
template <int COUNT> void wgmma(int (&sums)[COUNT][4], uint64 a, uint64 b)
{
    const WordsOfTwo rows = words_of_two(a, current / 32 % 4 * 16 + own_row(), 8);
    for (int j = 0; j < COUNT; ++j) add_dots(sums[j], rows, words_of_two(b, j * 8 + own_column(), 1));
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

// Two rows of a tile, `apart` from each other; those of `b` are columns.
inline TermsOfTwo<2> rows_of(uint64 form, int row, int apart)
{
    TermsOfTwo<2> found;
    for (int i = 0; i < 2; ++i)
        for (int p = 0; p < 2; ++p) found.of[i][p] = widened<Multiplied>(element(form, row + i * apart, 8 * p));
    return found;
}

// The rows of `a` that a thread has sums of, in shared memory, or in the registers of its warp.
inline TermsOfTwo<2> own_rows(uint64 a) { return rows_of(a, current / 32 % 4 * 16 + own_row(), 8); }
template <typename N> TermsOfTwo<2> own_rows(const u32 (&a)[4]) { return widened_two<N>(own_words(a)); }

// Two columns of a tile whose rows are terms.
inline TermsOfTwo<2> columns_of(uint64 form, int column)
{
    uint16_t terms[2][16];
    for (int k = 0; k < 16; ++k) {
        uint16_t two[2];
        memcpy(two, element(form, k, column), 4);
        terms[0][k] = two[0], terms[1][k] = two[1];
    }
    TermsOfTwo<2> found;
    for (int i = 0; i < 2; ++i)
        for (int p = 0; p < 2; ++p) found.of[i][p] = widened<Multiplied>(terms[i] + 8 * p);
    return found;
}

// sums[16][8 * COUNT] += a[16][16] * b[8 * COUNT][16]', by each of four warps
template <int COUNT> void wgmma(float (&sums)[COUNT][4], const TermsOfTwo<2>& rows, uint64 b)
{
    for (int j = 0; j < COUNT; ++j) add_products(sums[j], rows, rows_of(b, j * 8 + own_column(), 1));
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
    const TermsOfTwo<2> rows = own_rows(a);
    for (int j = 0; j < COUNT; ++j)
        add_products(sums[j], rows, columns_of(first + j / 8 * strip, j % 8 * 8 + own_column()));
}

// The same; `a` in registers
template <int COUNT> void wgmma_across(float (&sums)[COUNT][4], const u32 (&a)[4], uint64 b)
{
    const TermsOfTwo<2> rows = own_rows<Multiplied>(a);
    for (int j = 0; j < COUNT; ++j) add_products(sums[j], rows, columns_of(b, j * 8 + own_column()));
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
