// What load.cuh does in PTX, on the host; emulator.hpp comes before it.

struct alignas(16) Word {
    unsigned int at[4];
};

struct alignas(8) ShortWord {
    unsigned int at[2];
};

inline Word global_word(const void* from, bool inside = true)
{
    Word found = {};
    if (!inside) return found;
    assert_aligned(from, sizeof(found));
    memcpy(&found, from, sizeof(found));
    return found;
}
inline Word constant_word(const void* from, bool inside = true) { return global_word(from, inside); }
inline ShortWord global_short(const void* from, bool inside = true)
{
    ShortWord found = {};
    if (!inside) return found;
    assert_aligned(from, sizeof(found));
    memcpy(&found, from, sizeof(found));
    return found;
}
inline ShortWord constant_short(const void* from, bool inside = true) { return global_short(from, inside); }
inline void prefetch_l2(const void* from) { (void)*(const volatile char*)from; }  // finds addresses of nothing
