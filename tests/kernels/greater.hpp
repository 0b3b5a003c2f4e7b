// What greater.cuh does in PTX, on the host.

template <typename Some> inline Some greater(const Some& a, const Some& b)
{
    Some found;
    for (int q = 0; q < sizeof(a.at) / sizeof(a.at[0]); ++q) {
        const float x = float(a.at[q]), y = float(b.at[q]);
        found.at[q] = x > y || x != x ? a.at[q] : b.at[q];
    }
    return found;
}
