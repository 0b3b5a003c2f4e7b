// Sums for mean and variance. Squares are of differences from the mean of a few elements, and merging two
// sums adds the term of the difference of their means (Chan, Golub and LeVeque: Algorithms for Computing
// the Sample Variance, 1983), so that no precision is lost where the mean is large.
//
// A is the type of the arithmetic. Compile-time: CENTRED, whether squares are of differences from the mean,
// or of the elements themselves; WARPS of a block.

#include "reduce/block.cuh"

struct Moments {
    A count = 0, sum = 0, square = 0;

    // Adds n elements, at least one.
    __device__ __forceinline__ void add(A n, A more, A squares)
    {
        if (CENTRED && count > A(0)) {
            const A apart = sum / count - more / n;
            square += apart * apart * (count / (count + n) * n);
        }
        count += n;
        sum += more;
        square += squares;
    }
};

// Merges the sums of the threads of a block; together these cover `count` elements.
__device__ __forceinline__ Moments over_block(const Moments& own, A count)
{
    const A sum = over_block(own.sum, Plus());
    A square = own.square;
    if (CENTRED && own.count > A(0)) {
        const A apart = own.sum / own.count - sum / count;
        square += own.count * apart * apart;
    }
    return {count, sum, over_block(square, Plus())};
}
