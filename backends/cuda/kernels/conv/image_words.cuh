// Parts of images of few channels, whose rows are copied to shared memory in words of 16 bytes. Rows begin with whole words, so
// that up to WORD - 1 numbers come before those that are needed.
//
// Compile-time: S, of the image; T, of two bytes; THREADS.

constexpr int WORD = 16 / sizeof(S);  // numbers of a word

// The numbers of a row that contains `columns` from any place on.
__device__ constexpr int row_of_words(int columns) { return (columns + 2 * WORD - 2) / WORD * WORD; }

// Requests CHANNELS_OF times ROWS_OF rows of this many words from (top, left) on, zero outside of the image, whose width is a
// multiple of a word.
template <int CHANNELS_OF, int ROWS_OF, int WORDS_OF>
__device__ __forceinline__ void request_words(u32 to, const S* image, int top, int left, int height, int width)
{
#pragma unroll 2
    for (int i = threadIdx.x; i < CHANNELS_OF * ROWS_OF * WORDS_OF; i += THREADS) {
        const int line = i / WORDS_OF, row = top + line % ROWS_OF, column = (left & -WORD) + i % WORDS_OF * WORD;
        const bool inside = (u32)row < (u32)height && (u32)column < (u32)width;
        const S* from = image + (inside ? (line / ROWS_OF * height + row) * width + column : 0);
        cp_async<8>(to + i * 16, (const T*)from, inside);
    }
}
