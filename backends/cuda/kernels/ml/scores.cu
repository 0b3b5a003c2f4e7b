// Adds up the sums of all slices, in the memory of the first, and computes scores and classes. One thread per row.
//
// A is the type of sums, R the type they are rounded to, T that of scores. Compile-time: THREADS; BASES, the
// number of base values added to the sums of a row: none, one, or one for each; those of sums.cuh and scores.cuh.

#include "ptx/pdl.cuh"
#include "ml/scores.cuh"
#include "ml/sums.cuh"

// sums: [slices, targets, rows]; y: [rows, classes]; `over` is the divisor of an AVERAGE.
extern "C" __global__ void __launch_bounds__(THREADS)
scores(A* sums, const A* base, const long long* labels, T* y, long long* label, int rows, int targets, int slices,
       int over, double first)
{
    const int row = blockIdx.x * THREADS + threadIdx.x;
    grid_dependency_sync();
    if (row >= rows) return;
    sums += row;
    int best = 0;
    A most = -A(INFINITY);
    for (int t = 0; t < targets; ++t) {
        A* const first = sums + (long long)t * rows;
        A total = *first;
        for (int slice = 1; slice < slices; ++slice) {
            const A part = first[(long long)slice * targets * rows];
            if (!is_nothing(part)) total = added(total, part);
        }
        const bool found = BASES || !is_nothing(total);
        if (is_nothing(total)) total = 0;
        if (HOW == AVERAGE) total /= over;
        if (BASES) total += base[BASES == 1 ? 0 : t];
        total = A(R(total));
        if (found && (total > most || (total != total && most == most))) {
            most = total;
            best = t;
        }
        *first = total;
    }
    const int classes = PAIR ? 2 : targets;
    const auto put = [&](int t, A score) { if (y) y[(long long)row * classes + t] = T(score); };
    if (PAIR) transform_pair(A(first), *sums, put);
    else transform(targets, [&](int t) { return sums[(long long)t * rows]; }, put);
    if (PAIR) best = *sums > (PAIR == PROBABILITY ? A(0.5) : A(0));
    if (label) label[row] = labels[best];
}
