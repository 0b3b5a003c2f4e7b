// What CUDA C++ has beyond C++17, for kernels that run on the host, one thread after the other.
//
// Blocks run one by one. The threads of a block are fibers where the kernel has a barrier or a
// shuffle: a fiber runs until it reaches one, then the next one runs. Warps have 32 threads.

#pragma once

#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS  // Bessel functions and the like take longer to compile than most kernels
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define CUDART_INF_F __builtin_inff()

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 { float x, y; };
#define __noinline__
struct alignas(8) uint2 { unsigned int x, y; };
struct alignas(16) float4 { float x, y, z, w; };

// Ends the process where a GPU would find an address that is no multiple of the bytes at it.
inline void assert_aligned(const void* p, size_t bytes)
{
    if ((size_t)p % bytes) abort();
}

inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim, clusterDim;

// The dynamic shared memory of the kernel that runs.
constexpr int DYNAMIC_SHARED = 1 << 18;
inline char* dynamic_shared;

// ── short floats ──────────────────────────────────────────────────────────────────────────────

struct __half {
    _Float16 value;
    __half() = default;
    __half(float x) : value((_Float16)x) {}
    __half(double x) : value((_Float16)x) {}
    template <typename N, typename = std::enable_if_t<std::is_integral_v<N>>>
    __half(N x) : value((_Float16)(float)x) {}
    operator float() const { return (float)value; }
};

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x)
    {
        uint32_t word;
        memcpy(&word, &x, 4);
        bits = x != x ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    __nv_bfloat16(double x) : __nv_bfloat16((float)x) {}
    template <typename N, typename = std::enable_if_t<std::is_integral_v<N>>>
    __nv_bfloat16(N x) : __nv_bfloat16((float)x) {}
    operator float() const
    {
        const uint32_t word = (uint32_t)bits << 16;
        float x;
        memcpy(&x, &word, 4);
        return x;
    }
};

// ── functions ─────────────────────────────────────────────────────────────────────────────────

inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned x) { return __int_as_float((int)x); }
inline unsigned __float_as_uint(float x) { return (unsigned)__float_as_int(x); }
inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
inline int atomicAdd(int* p, int x) { const int old = *p; *p += x; return old; }
template <typename T> T atomicCAS(T* p, T old, T x) { const T there = *p; if (there == old) *p = x; return there; }
inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
template <typename T> T __ldg(const T* p) { return *p; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned places)
{
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned found = 0;
    for (int i = 0; i < 32; i += 8) found |= (unsigned)(bytes >> 8 * (places >> i / 2 & 7) & 255) << i;
    return found;
}
inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    const unsigned low = (a & 0xffff) > (b & 0xffff) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (high & 0xffff0000) | (low & 0xffff);
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
// As CUDA's, which of NaN and a number give the number.
template <typename A, typename B> std::common_type_t<A, B> max(A a, B b) { return a < b || a != a ? b : a; }
template <typename A, typename B> std::common_type_t<A, B> min(A a, B b) { return b < a || a != a ? b : a; }
using std::abs, std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atanh, std::ceil;
using std::copysign, std::cos, std::cosh, std::erf, std::exp, std::expm1, std::fabs, std::floor, std::fma;
using std::fmod, std::isinf, std::isnan, std::log, std::log1p, std::pow, std::rint, std::sin;
using std::sinh, std::sqrt, std::tan, std::tanh, std::trunc;
inline double sinpi(double x) { return std::sin(M_PI * x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double cospi(double x) { return std::cos(M_PI * x); }
#undef INFINITY
#undef NAN

// ── fibers ────────────────────────────────────────────────────────────────────────────────────

extern unsigned current;

// Threads that wait for each other: those of the block, of one warp, or of a group of a warp's lanes,
// which has the number of its first thread.
struct Meeting {
    unsigned waiting, number;
};
extern Meeting meetings[1 + 32], named[16], groups[1024];

// Lets the other threads of the block go on.
void give_way();

// Waits until all threads from `first` to `last` that have not ended have come.
void meet(Meeting& at, unsigned first, unsigned last);
inline void __syncthreads() { meet(meetings[0], 0, blockDim.x); }
// Lanes that are no neighbours wait for all of the warp.
inline void __syncwarp(unsigned lanes = ~0u)
{
    const unsigned warp = current / 32, count = __builtin_popcount(lanes), lane = __builtin_ctz(lanes);
    const unsigned first = warp * 32 + lane;
    if (count < 32 && lanes >> lane == (1u << count) - 1) meet(groups[first], first, first + count);
    else meet(meetings[1 + warp], warp * 32, warp * 32 + 32);
}

// What threads show to others of their warp, in turns of two: when one of them overwrites what it has shown, all have
// met once more, so they have read it.
inline unsigned turn() { return meetings[1 + current / 32].number % 2; }
extern unsigned long long exchanged[2][1024];

template <typename T> T exchange(unsigned lanes, T value, unsigned lane)
{
    static_assert(sizeof(T) <= 8);
    unsigned long long* all = exchanged[turn()];
    memcpy(&all[current], &value, sizeof(T));
    __syncwarp(lanes);
    memcpy(&value, &all[current / 32 * 32 + lane % 32], sizeof(T));
    if (lanes != ~0u) __syncwarp(lanes);  // the turn is that of the warp
    return value;
}
template <typename T> T __shfl_sync(unsigned lanes, T value, int lane)
{
    return exchange(lanes, value, lane);
}
template <typename T> T __shfl_xor_sync(unsigned lanes, T value, int mask)
{
    return exchange(lanes, value, current % 32 ^ mask);
}
template <typename T> T __shfl_down_sync(unsigned lanes, T value, int delta)
{
    const unsigned lane = current % 32;
    return exchange(lanes, value, lane + delta < 32 ? lane + delta : lane);
}

template <typename T> T __shfl_up_sync(unsigned lanes, T value, int delta)
{
    const int lane = current % 32;
    return exchange(lanes, value, lane < delta ? lane : lane - delta);
}

inline unsigned __ballot_sync(unsigned, int predicate)
{
    unsigned long long* all = exchanged[turn()];
    all[current] = predicate != 0;
    __syncwarp();
    unsigned found = 0;
    for (int lane = 0; lane < 32; ++lane) found |= (unsigned)(all[current / 32 * 32 + lane] != 0) << lane;
    return found;
}
template <typename T> T __reduce_max_sync(unsigned lanes, T value)
{
    for (int mask = 16; mask; mask /= 2) {
        const T other = __shfl_xor_sync(lanes, value, mask);
        value = other > value ? other : value;
    }
    return value;
}
template <typename T> T __reduce_min_sync(unsigned lanes, T value)
{
    for (int mask = 16; mask; mask /= 2) {
        const T other = __shfl_xor_sync(lanes, value, mask);
        value = other < value ? other : value;
    }
    return value;
}
template <typename T> T __reduce_add_sync(unsigned lanes, T value)
{
    for (int mask = 16; mask; mask /= 2) value += __shfl_xor_sync(lanes, value, mask);
    return value;
}
inline int __any_sync(unsigned lanes, int predicate) { return __ballot_sync(lanes, predicate) != 0; }

inline int __all_sync(unsigned lanes, int predicate) { return !__any_sync(lanes, !predicate); }

// Conditional nodes: the fake driver's handle of one is the address of its value.
extern "C" inline void cudaGraphSetConditional(unsigned long long node, unsigned value)
{
    *(unsigned*)node = value;
}

// ── clusters ──────────────────────────────────────────────────────────────────────────────────

// The blocks of a cluster do not run side by side here. Their grid runs twice, and in the second time each finds what
// the others had in shared memory in the first, or wrote there; if they wait for one another more often, as often.

// Keeps the shared memory of the block that runs for the others of its cluster.
void leave_behind(const char* shared);

// What another block of the cluster has left behind; null if it has not run.
const char* left_behind(unsigned block);

// Writes to a place in the shared memory of a block of the cluster.
void send(unsigned block, size_t place, float x);

// Waits for the cluster, which brings what was sent after as many waits.
void receive(char* shared);

// Lets other blocks of a cooperative launch go on, which find neither the shared memory of this one nor what its lanes show.
void take_turns(char* shared, void* shown, size_t bytes);

// Brings all that was sent, for the first thread that comes.
void receive_all(char* shared);

// ── copies that signal a barrier ──────────────────────────────────────────────────────────────

// What ends a copy, as a function and what it is given.
struct Ending {
    void (*end)(const char*);
    alignas(16) char given[256];
};

void begin_copy(unsigned barrier, int bytes, const Ending& ending);
void mbarrier_init(unsigned barrier, int count);
void mbarrier_arrive(unsigned barrier);
void mbarrier_expect_tx(unsigned barrier, int bytes);
void mbarrier_wait(unsigned barrier, unsigned parity);

// ── launches ──────────────────────────────────────────────────────────────────────────────────

template <typename... P, size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>)
{
    kernel(*(std::remove_reference_t<P>*)arguments[I]...);
}
template <typename... P> void call(void (*kernel)(P...), void** arguments)
{
    call(kernel, arguments, std::index_sequence_for<P...>());
}
template <typename... P> int sizes(void (*)(P...), int* found)
{
    int n = 0;
    ((found[n++] = (int)sizeof(P)), ...);
    return n;
}

// Runs a whole grid. `barriers` says whether threads of a block wait for each other. Returns the
// address that a thread may not access, where it ended; null if there is none.
void* run_grid(void (*kernel)(void**), void** arguments, const unsigned* grid, unsigned threads,
               bool barriers);
