// What greater.cuh does in PTX, on the host.

template <typename Eight> inline Eight greater(const Eight& a, const Eight& b)
{
    Eight found;
    for (int q = 0; q < 8; ++q) {
        const float x = float(a.at[q]), y = float(b.at[q]);
        found.at[q] = x > y || x != x ? a.at[q] : b.at[q];
    }
    return found;
}
