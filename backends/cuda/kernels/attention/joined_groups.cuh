// How warpgroups that have different keys join the results of 64 rows.

// Adds those of all groups to the first one's: results, greatest scores, and sums of weights of a thread's two rows. The others
// leave theirs in shared memory.
template <int WIDE>
__device__ __forceinline__ void join(float (&results)[WIDE][4], float (&peak)[2], float (&sum)[2], float4* shared, int group,
                                     float scale)
{
    const auto place_of = [&](int other) { return shared + (other - 1) * ((WIDE + 1) * 128) + threadIdx.x % 128; };
    if (group > 0) {
        float4* const to = place_of(group);
#pragma unroll
        for (int j = 0; j < WIDE; ++j) to[j * 128] = make_float4(results[j][0], results[j][1], results[j][2], results[j][3]);
        to[WIDE * 128] = make_float4(peak[0], peak[1], sum[0], sum[1]);
    }
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int other = 1; other < GROUPS; ++other) {
        const float4* const from = place_of(other);
        const float4 state = from[WIDE * 128];
        const float peaks[2] = {state.x, state.y}, sums[2] = {state.z, state.w};
        float by[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float most = fmaxf(peak[half], peaks[half]);
            const Exponentials exponentials(most, scale);
            const float own = exponentials.since(peak[half]);
            by[half] = exponentials.since(peaks[half]);
            peak[half] = most;
            sum[half] = sum[half] * own + sums[half] * by[half];
            multiply_row(results, half, own);
        }
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            const float4 found = from[j * 128];
            results[j][0] = fmaf(found.x, by[0], results[j][0]);
            results[j][1] = fmaf(found.y, by[0], results[j][1]);
            results[j][2] = fmaf(found.z, by[1], results[j][2]);
            results[j][3] = fmaf(found.w, by[1], results[j][3]);
        }
    }
}
