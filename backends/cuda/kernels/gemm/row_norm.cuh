// The rows of x as products of few rows read them: from global memory, or a single row NORMALIZED, which every block
// computes for itself after the wait for the preceding kernel, while its weights are in flight. It is then in shared
// memory.
//
// As in normalize_rows.cu, statistics are in float32, the variance is the sum of squared differences from the mean, and
// results are rounded once.
//
// Compile-time: M and K, rows and their elements; ROW, the distance between rows in elements; WARPS; SLICE, adjacent
// elements that a warp multiplies, before those of the next warp; Y, their type; NORMALIZED; CENTRED, whether the mean is subtracted; SHIFTED, whether there is a shift.

static_assert(!NORMALIZED || M == 1, "more rows take blocks longer than a kernel that normalizes them once");

constexpr int CHUNK = K % 4 == 0 ? 4 : 1;  // elements that a thread has at once
struct alignas(CHUNK * sizeof(Y)) Chunk {
    Y at[CHUNK];
};

// The addresses of the row, the scale and the shift.
__device__ __forceinline__ Y* row_memory()
{
    extern __shared__ __align__(16) unsigned char memory[];
    return (Y*)memory;
}

// Words of 16 and 8 bytes; see load.cuh.
template <int BYTES> struct PieceOf { using Type = Word; };
template <> struct PieceOf<8> { using Type = ShortWord; };
__device__ __forceinline__ void load_constant(Word& to, const Y* from, bool inside) { to = constant_word(from, inside); }
__device__ __forceinline__ void load_constant(ShortWord& to, const Y* from, bool inside) { to = constant_short(from, inside); }
__device__ __forceinline__ void load_global(Word& to, const Y* from, bool inside) { to = global_word(from, inside); }
__device__ __forceinline__ void load_global(ShortWord& to, const Y* from, bool inside) { to = global_short(from, inside); }

// Scale and shift, which exist before the preceding kernel ends. They are loaded ahead of the weights, behind which they
// would wait for memory, if they take few registers; then the row of x is in registers as well.
struct Parameters {
    // Whether the words of a warp's threads are what it multiplies itself.
    static constexpr bool OWN = SLICE * sizeof(Y) == 32 * 8 || SLICE * sizeof(Y) == 32 * 16;
    static constexpr int BYTES = OWN ? SLICE * sizeof(Y) / 32 : 16, PER_WORD = BYTES / sizeof(Y);
    static constexpr int TIMES = (K + PER_WORD * THREADS - 1) / (PER_WORD * THREADS);
    static constexpr bool AHEAD = NORMALIZED && K % PER_WORD == 0 && TIMES * (1 + SHIFTED) * BYTES <= 64;
    using Piece = typename PieceOf<BYTES>::Type;
    Piece scale[AHEAD ? TIMES : 1], shift[AHEAD && SHIFTED ? TIMES : 1];

    // The first element of a thread's word i.
    static __device__ __forceinline__ int place(int i) { return (i * THREADS + threadIdx.x) * PER_WORD; }

    static __device__ __forceinline__ bool is_inside(int i)
    {
        return (i + 1) * THREADS * PER_WORD <= K || place(i) < K;
    }

    __device__ __forceinline__ void load(const Y* from, const Y* more)
    {
        if constexpr (AHEAD) {
#pragma unroll
            for (int i = 0; i < TIMES; ++i) {
                load_constant(scale[i], from + place(i), is_inside(i));
                if (SHIFTED) load_constant(shift[SHIFTED * i], more + place(i), is_inside(i));
            }
        }
    }

    // Copies those that are not loaded to shared memory.
    __device__ __forceinline__ void keep(const Y* from, const Y* more) const
    {
        if constexpr (!NORMALIZED || AHEAD) return;
        Y* const to = row_memory() + ROW;
        for (int k = threadIdx.x * CHUNK; k < K; k += THREADS * CHUNK) {
            *(Chunk*)(to + k) = *(const Chunk*)(from + k);
            if (SHIFTED) *(Chunk*)(to + ROW + k) = *(const Chunk*)(more + k);
        }
    }
};

// Stores the partial sum of a warp.
__device__ __forceinline__ void leave_sum(float (&parts)[WARPS], float sum)
{
#pragma unroll
    for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
}

// The mean of the elements of a row whose partial sums the warps have stored.
__device__ __forceinline__ float mean_of(const float (&parts)[WARPS])
{
    float sums[4] = {};
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) sums[warp % 4] += parts[warp];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) / K;
}

// A thread's words of the row, the same ones as of the parameters.
struct OwnWords {
    static constexpr int TIMES = Parameters::TIMES, PER_WORD = Parameters::PER_WORD;
    using Piece = Parameters::Piece;
    Piece at[TIMES];

    static __device__ __forceinline__ float element(const Piece& word, int e) { return float(((const Y*)word.at)[e]); }

    // The mean of the row, or of the squared differences from `mean`.
    template <bool SQUARED> __device__ __forceinline__ float mean(float (&parts)[WARPS], float mean) const
    {
        float sums[4] = {};
#pragma unroll
        for (int i = 0; i < TIMES; ++i)
#pragma unroll
            for (int e = 0; e < PER_WORD; ++e) {
                if (CENTRED && !Parameters::is_inside(i)) break;
                const float apart = element(at[i], e) - mean;
                sums[e % 4] += SQUARED ? apart * apart : apart;
            }
        leave_sum(parts, (sums[0] + sums[1]) + (sums[2] + sums[3]));
        __syncthreads();
        return mean_of(parts);
    }
};

// Normalizes the row in registers, and returns where it is then.
__device__ __forceinline__ const Y* normalized_words(const Y* x, const Parameters& parameters, float epsilon)
{
    __shared__ __align__(16) float sums[WARPS], squares[WARPS];
    OwnWords words;
#pragma unroll
    for (int i = 0; i < OwnWords::TIMES; ++i)
        load_global(words.at[i], x + Parameters::place(i), Parameters::is_inside(i));
    const float mean = CENTRED ? words.mean<false>(sums, 0) : 0.0f;
    const float variance = words.mean<true>(squares, mean) + epsilon;
    const float by = sizeof(Y) == 2 ? rsqrtf(variance) : 1 / sqrtf(variance);
    Y* const row = row_memory();
#pragma unroll
    for (int i = 0; i < OwnWords::TIMES; ++i) {
        if (!Parameters::is_inside(i)) break;
        OwnWords::Piece made;
#pragma unroll
        for (int e = 0; e < OwnWords::PER_WORD; ++e) {
            float value = (OwnWords::element(words.at[i], e) - mean) * by * OwnWords::element(parameters.scale[i], e);
            if (SHIFTED) value += OwnWords::element(parameters.shift[SHIFTED * i], e);
            ((Y*)made.at)[e] = Y(value);
        }
        *(OwnWords::Piece*)(row + Parameters::place(i)) = made;
    }
    if (Parameters::OWN) __syncwarp();
    else __syncthreads();
    return row;
}

// Whether a row can be divided by its root mean square after it has been multiplied, as results are: no warp waits for the
// others' squares. Until then a power of two of its own stands for it in each warp, so that no number gets too large or
// too small for its type.
constexpr bool DEFERS = NORMALIZED && Parameters::AHEAD && Parameters::OWN && !CENTRED && !SHIFTED && sizeof(Y) == 2;

// Multiplies a warp's own words of the row by their factors, and puts them where `rows_of` would, for this warp alone.
// Stores the sum of their squares in `squares`. Returns the power of two by which sums of this warp are to be multiplied.
__device__ __forceinline__ float scale_words(const Y* x, const Parameters& parameters, float (&squares)[WARPS])
{
    OwnWords words;
#pragma unroll
    for (int i = 0; i < OwnWords::TIMES; ++i)
        load_global(words.at[i], x + Parameters::place(i), Parameters::is_inside(i));
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < OwnWords::TIMES; ++i)
#pragma unroll
        for (int e = 0; e < OwnWords::PER_WORD; ++e) {
            const float value = OwnWords::element(words.at[i], e);
            sums[e % 4] += value * value;
        }
    const float own = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    const int exponent = int(__reduce_max_sync(~0u, __float_as_uint(own)) >> 23) - 127;  // of the largest square or more
    const int half = (exponent >> 1) - 2;
    const float by = __int_as_float((127 - half) << 23);  // the largest number becomes 1 to 8
    Y* const row = row_memory();
#pragma unroll
    for (int i = 0; i < OwnWords::TIMES; ++i) {
        if (!Parameters::is_inside(i)) break;
        OwnWords::Piece made;
#pragma unroll
        for (int e = 0; e < OwnWords::PER_WORD; ++e)
            ((Y*)made.at)[e] =
                Y(OwnWords::element(words.at[i], e) * by * OwnWords::element(parameters.scale[i], e));
        *(OwnWords::Piece*)(row + Parameters::place(i)) = made;
    }
    leave_sum(squares, own);
    return __int_as_float((127 + half) << 23);
}

// Returns the address that rows of x are read from.
__device__ __forceinline__ const Y* rows_of(const Y* x, const Parameters& ahead, float epsilon)
{
    if constexpr (!NORMALIZED) {
        return x;
    } else if constexpr (Parameters::AHEAD) {
        return normalized_words(x, ahead, epsilon);
    } else {
        __shared__ float sums[WARPS], squares[WARPS];
        Y* const row = row_memory();
        const Y* const parameters = row + ROW;
        float sum = 0;
        for (int k = threadIdx.x * CHUNK; k < K; k += THREADS * CHUNK) {
            const Chunk chunk = *(const Chunk*)(x + k);
            *(Chunk*)(row + k) = chunk;
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) {
                const float value = chunk.at[e];
                sum += CENTRED ? value : value * value;
            }
        }
        leave_sum(CENTRED ? sums : squares, sum);
        __syncthreads();
        const float mean = CENTRED ? mean_of(sums) : 0.0f;
        if constexpr (CENTRED) {
            float square = 0;
            for (int k = threadIdx.x * CHUNK; k < K; k += THREADS * CHUNK)
#pragma unroll
                for (int e = 0; e < CHUNK; ++e) {
                    const float apart = float(row[k + e]) - mean;
                    square += apart * apart;
                }
            leave_sum(squares, square);
            __syncthreads();
        }
        const float by = 1 / sqrtf(mean_of(squares) + epsilon);
        for (int k = threadIdx.x * CHUNK; k < K; k += THREADS * CHUNK) {
            Chunk chunk = *(const Chunk*)(row + k), more = {};
            const Chunk factors = *(const Chunk*)(parameters + k);
            if (SHIFTED) more = *(const Chunk*)(parameters + ROW + k);
#pragma unroll
            for (int e = 0; e < CHUNK; ++e) {
                float value = (float(chunk.at[e]) - mean) * by * float(factors.at[e]);
                if (SHIFTED) value += float(more.at[e]);
                chunk.at[e] = Y(value);
            }
            *(Chunk*)(row + k) = chunk;
        }
        __syncthreads();
        return row;
    }
}
