// Means of 16-bit elements: sums times the share of an element, so that there are as many divisions as pixels, not elements.
// Where results are stored as they are (PLAIN), the error of that is far below one of rounding; but an epilogue may tell a mean
// from a number that it is next to (Floor), so that it gets the quotient, to the last digit.

__device__ __forceinline__ float mean_by(float share, float sum, int elements)
{
    const float mean = sum * share;
    if constexpr (PLAIN) return mean;
    const float better = fmaf(fmaf(-mean, float(elements), sum), share, mean);
    return better == better ? better : mean;  // of infinity
}
