// The experts that a row chooses: the TOP greatest of EXPERTS logits, the first of equal ones, and a weight for each.
//
// Compile-time: L, the type of logits; G, of given weights; EXPERTS; TOP; HOW the weights are made.

constexpr int OF_CHOSEN = 0, OF_ALL = 1, GIVEN = 2, GIVEN_SHARES = 3, SPARSE = 4;
constexpr float MARGIN = 2 * 0.01f;  // of logits that are close enough, of Phi-3.5 MoE

__device__ __forceinline__ float over_warp(float sum)
{
#pragma unroll
    for (int other = 16; other; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
}

// A number that orders logits as they are; 0 is below all of them.
__device__ __forceinline__ unsigned order_of(float logit)
{
    const unsigned bits = __float_as_uint(logit + 0.0f);  // -0 is 0
    return max(1u, bits >> 31 ? ~bits : bits | 0x80000000u);
}

// Chooses with a warp, in the order of logits: all of its lanes call `keep(slot, expert, weight)`. Returns what the
// weights must be divided by.
template <typename Keep>
__device__ __forceinline__ float choose_experts(const L* router, const G* given, long long row, const Keep& keep)
{
    constexpr int EACH_LANE = (EXPERTS + 31) / 32;
    const int lane = threadIdx.x % 32;
    float logits[EACH_LANE];
    unsigned orders[EACH_LANE];  // 0 for those chosen before
#pragma unroll
    for (int i = 0; i < EACH_LANE; ++i) {
        const bool inside = i * 32 + lane < EXPERTS;
        logits[i] = inside ? float(router[row * EXPERTS + i * 32 + lane]) : 0.0f;
        orders[i] = inside ? order_of(logits[i]) : 0;
    }
    float greatest = 0, total = HOW == OF_CHOSEN || HOW == GIVEN_SHARES ? 0.0f : 1.0f;
#pragma unroll 1
    for (int slot = 0; slot < TOP; ++slot) {
        unsigned own = 0;
        int first = 0;
#pragma unroll
        for (int i = EACH_LANE - 1; i >= 0; --i)
            if (orders[i] >= own) own = orders[i], first = i;
        const unsigned best = __reduce_max_sync(~0u, own);
        const int expert = __reduce_min_sync(~0u, own == best ? first * 32 + lane : EXPERTS);
        float mine = 0;
#pragma unroll
        for (int i = 0; i < EACH_LANE; ++i)
            if (i == expert / 32) mine = logits[i];
        const float logit = __shfl_sync(~0u, mine, expert % 32);
        if (slot == 0) greatest = logit;
        if (HOW == OF_ALL && slot == 0) {
            total = 0;
#pragma unroll
            for (int i = 0; i < EACH_LANE; ++i)
                if (orders[i]) total += expf(logits[i] - greatest);
            total = over_warp(total);
        }
        float weight = 0;
        if constexpr (HOW == GIVEN || HOW == GIVEN_SHARES) {
            weight = float(given[row * EXPERTS + expert]);
        } else if constexpr (HOW == SPARSE) {
#pragma unroll
            for (int i = 0; i < EACH_LANE; ++i)
                if (orders[i] && logit - logits[i] <= MARGIN * fmaxf(fabsf(logits[i]), logit))
                    weight += expf(logits[i] - logit);
            weight = 1 / over_warp(weight);
        } else {
            weight = expf(logit - greatest);
        }
        if (HOW == OF_CHOSEN || HOW == GIVEN_SHARES) total += weight;
#pragma unroll
        for (int i = 0; i < EACH_LANE; ++i)
            if (i * 32 + lane == expert) orders[i] = 0;
        keep(slot, expert, weight);
    }
    return total;
}
