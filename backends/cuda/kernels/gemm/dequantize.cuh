// Integers of a few bits as 16-bit numbers in registers: (integer - zero) * scale, each operation rounded once.
//
// An integer is inserted into the last bits of 2^10 (2^7 in bfloat16), which is then subtracted exactly. In float16 it
// may be followed by up to seven zero bits of its byte, whose power of two is divided out in the same operation; so a
// word is shifted by whole bytes only.
//
// Compile-time: T, the type that is multiplied; KIND, its PTX name; BITS; ZEROS, whether every scale has a zero point,
// else it is 2^(BITS - 1).

constexpr int EACH = 32 / BITS;  // integers of a word
constexpr bool BRAIN = KIND[0] == 'b';
constexpr int MIDDLE = 1 << (BITS - 1);
constexpr u32 BASE = BRAIN ? 0x43004300 : 0x64006400, NOTHING = 0x80008000;

__device__ constexpr u32 both(u32 bits) { return bits | bits << 16; }

// 2^-zeros, which is 1 in bfloat16.
__device__ constexpr u32 unit(int zeros) { return BRAIN ? 0x3f803f80 : both((15 - zeros) << 10); }

// -(BASE / 2^zeros + MIDDLE).
__device__ constexpr u32 less(int zeros)
{
    return BRAIN ? both(0xc300 | MIDDLE) : both(0x8000 | (25 - zeros) << 10 | MIDDLE << zeros);
}

// Masks of both integers of a byte, or of the first, twice. The compiler does not know their values and so keeps them
// in registers instead of rematerializing them for each use.
constexpr int MASKS = BRAIN || BITS == 8 ? 1 : 8 / BITS;
struct Masks {
    u32 of[MASKS];

    __device__ __forceinline__ Masks()
    {
#pragma unroll
        for (int i = 0; i < MASKS; ++i) {
            of[i] = both(((1u << BITS) - 1) << i * BITS);
            asm volatile("// kept;" : "+r"(of[i]));
        }
    }
};

// A scale, and the rest to subtract besides MIDDLE, each as a pair of equal numbers.
struct Factor {
    u32 scale, shift;

    // Of a pair of equal scales and one of equal zero points.
    __device__ __forceinline__ Factor(u32 scale, u32 zero) : scale(scale)
    {
        constexpr u32 MINUS_ONE = BRAIN ? 0xbf80bf80 : 0xbc00bc00;
        constexpr u32 HALFWAY = BRAIN ? both(0x3f80 + ((BITS - 1) << 7)) : both((14 + BITS) << 10);
        shift = ZEROS ? pair_fma(zero, MINUS_ONE, HALFWAY) : 0;
    }

    __device__ __forceinline__ explicit Factor(const void* from)
    {
        struct alignas(2 + 2 * ZEROS) Bits {
            unsigned short at[1 + ZEROS];
        };
        const Bits bits = *(const Bits*)from;
        *this = Factor(bits.at[0] * 0x10001u, bits.at[1 * ZEROS] * 0x10001u);
    }
};

// The integers of a word, minus MIDDLE, as pairs of neighbours.
__device__ __forceinline__ void unpack(u32 (&to)[EACH / 2], u32 word, const Masks& masks)
{
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i) {
        if constexpr (BITS == 8 && BRAIN) {
            const u32 first = __byte_perm(word, 0x4b000000, 0x7440 + 2 * i);
            const u32 second = __byte_perm(word, 0x4b000000, 0x7441 + 2 * i);
            to[i] = __byte_perm(__float_as_uint(__uint_as_float(first) - (8388608.0f + MIDDLE)),
                                __float_as_uint(__uint_as_float(second) - (8388608.0f + MIDDLE)), 0x7632);
        } else if constexpr (BITS == 8) {
            to[i] = pair_fma(__byte_perm(word, BASE, i == 0 ? 0x5150 : 0x5352), unit(0), less(0));
        } else {
            const int from = i % 2 * 8 + i / 2 * BITS, zeros = from % (MASKS * BITS);
            to[i] = pair_fma(and_or(word >> (from - zeros), masks.of[zeros / BITS], BASE), unit(zeros), less(zeros));
        }
    }
}

// The integers of a word minus their zero point, in the same order.
__device__ __forceinline__ void centre(u32 (&to)[EACH / 2], u32 word, const Factor& factor, const Masks& masks)
{
    unpack(to, word, masks);
    if constexpr (!ZEROS) return;
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i) to[i] = pair_fma(to[i], unit(0), factor.shift);
}

// The numbers that the integers of a word represent, in the same order; `factor_of(i)` gives the scale of pair i.
template <typename FactorOf>
__device__ __forceinline__ void dequantize(u32 (&to)[EACH / 2], u32 word, const Masks& masks, const FactorOf& factor_of)
{
    unpack(to, word, masks);
#pragma unroll
    for (int i = 0; i < EACH / 2; ++i) {
        const Factor& factor = factor_of(i);
        if constexpr (ZEROS) to[i] = pair_fma(to[i], unit(0), factor.shift);
        to[i] = pair_fma(to[i], factor.scale, NOTHING);
    }
}

// The same with one scale.
__device__ __forceinline__ void dequantize(u32 (&to)[EACH / 2], u32 word, const Factor& factor, const Masks& masks)
{
    dequantize(to, word, masks, [&](int) -> const Factor& { return factor; });
}
