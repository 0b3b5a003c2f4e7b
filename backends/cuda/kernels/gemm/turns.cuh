// Which columns of a product are heads that are rotated, as by attention/rotate.cuh, and by which angles.
//
// Compile-time: T, the type of tables; HALF, pairs of a head.

// The columns that are rotated, and the positions of rows: those of `length` rows of a sample, or of `batches` of them.
// Tables have `places`.
struct Turns {
    int columns, length, batches, places;
};

struct Angles {
    const T *cosine, *sine;
    const long long* positions;
    Turns by;

    // The row of the tables for a row of the product; -1 if they have none.
    __device__ __forceinline__ long long place(int row) const
    {
        const int own = row % (by.batches * by.length);
        const long long found = positions ? positions[own] : own;
        return found < by.places ? found : -1;
    }
};
