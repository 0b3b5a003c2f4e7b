// Triangular mel filters, mel(f) = 2595 log10(1 + f / 700): y[line, bin], one thread per element. N and R
// are the types of the length and the rate, E and F those of the edges in hertz, Y that of results.

#include "ptx/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256)
mel(const N* length, const R* rate, const E* lowest, const F* highest, Y* y, long long count, int bins)
{
    const long long i = blockIdx.x * 256LL + threadIdx.x;
    grid_dependency_sync();
    if (i >= count) return;
    const double low = 2595 * log10(1 + double(float(*lowest)) / 700);
    const double step = (2595 * log10(1 + double(float(*highest)) / 700) - low) / (bins + 2);
    const auto corner = [&](int place) {
        const double hertz = 700 * (pow(10.0, (low + place * step) / 2595) - 1);
        return (long long)floor((double(*length) + 1) * hertz / double(*rate));
    };
    const long long line = i / bins, bin = i % bins;
    const long long left = corner(bin), centre = corner(bin + 1), right = corner(bin + 2);
    double weight = 0;
    if (line >= left && line <= centre) weight = double(line - left) / max(centre - left, 1LL);
    if (left == centre && line == centre) weight = 1;
    if (line >= centre && line < right) weight = double(right - line) / max(right - centre, 1LL);
    y[i] = Y(float(weight));
}
