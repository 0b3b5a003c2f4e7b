// Heads of 64 elements as columns of rows in halves, which a product has stored (store_halves.cuh).
//
// Compile-time: CUT, whether operands are such columns; 0 if it is not defined.

#ifndef CUT
#define CUT 0
#endif

constexpr int BLOCK_OF_HEAD = 64;

// Factor of the inverses of scales in memory.
constexpr float INVERSE_UNIT = CUT ? 1 / LESS : 1.0f;

// The rows of an operand: their number, a multiple of eight, their terms, and the block of its first head.
struct CutRows {
    int rows, terms, block;
};

struct Cuts {
    CutRows q, k, v;
};

// A head of a sequence, whose rows begin with `first`.
struct HeadInHalves {
    const unsigned char* steps;
    const float* inverses;
    int rows, first;

    __device__ __forceinline__ HeadInHalves(const unsigned char* halves, const CutRows& of, int first, int head)
        : steps(halves + (long long)(of.block + head) * 2 * of.rows * 128),
          inverses((const float*)(halves + (long long)of.rows * of.terms * 4) + (long long)(of.block + head) * of.rows),
          rows(of.rows), first(first)
    {
    }

    // Sixteen bytes of 32 terms: four chunks of high parts, then four of low ones.
    __device__ __forceinline__ const unsigned char* chunk(int row, int step, int number) const
    {
        row += first;
        return steps + ((long long)step * rows + row) * 128 + (number ^ (row & 7)) * 16;
    }

    __device__ __forceinline__ const float* inverse(int row) const { return inverses + first + row; }
};

// The column of the first of a thread's two results of an eight; the other one is four further. Products order terms so
// that 4 i + j of every sixteen is at 8 (i / 2) + 2 j + i % 2.
__device__ __forceinline__ int column_of_eight(int eight) { return eight * 8 + threadIdx.x % 4; }
