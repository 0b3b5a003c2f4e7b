// The state of an argmax reduction: an element and its index, of type Index. NaN beats every number. Initially it is a number
// that beats no other, at an index that loses to all others.
struct Place {
    A value;
    Index at;
};
template <bool GREATEST, bool LAST_INDEX>
__device__ __forceinline__ Place better(Place a, Place b)
{
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (a.value == b.value || (nan_a && nan_b)) return (a.at < b.at) != LAST_INDEX ? a : b;
    return nan_a || (GREATEST ? a.value > b.value : a.value < b.value) ? a : b;
}
