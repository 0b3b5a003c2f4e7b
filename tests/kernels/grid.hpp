// What grid.cuh does in PTX, on the host, where blocks of a cooperative launch take turns.

struct alignas(16) GridWord {
    u32 at[4];
};

inline GridWord shared_word(const void* from)
{
    assert_aligned(from, sizeof(GridWord));
    return *(const GridWord*)from;
}
inline void let_others_go_on() { take_turns(dynamic_shared, shown, sizeof(shown)); }
template <typename B> void share(B* to, B bits) { *to = bits; }
inline void grid_fence() {}
template <int BYTES> bool are_there(const GridWord& word)
{
    bool found = true;
    for (int i = 0; i < 16 / BYTES; ++i) {
        const u32 bits = BYTES == 4 ? word.at[i] : word.at[i / 2] >> i % 2 * 16 | 0xffff0000;
        found &= bits != ~0u;
    }
    return found;
}
