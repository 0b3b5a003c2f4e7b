// The state of an argmax reduction: an element and its index, which is -1 initially. NaN beats
// every number.
struct Place {
    A value;
    long long at;
};
template <bool GREATEST, bool LAST_INDEX>
__device__ __forceinline__ Place better(Place a, Place b)
{
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (nan_a && nan_b || a.value == b.value) return (a.at < b.at) != LAST_INDEX ? a : b;
    return nan_a || (!nan_b && (a.value > b.value) == GREATEST) ? a : b;
}
