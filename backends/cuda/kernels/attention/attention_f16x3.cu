// softmax(softcap(scale * q @ k') + mask) @ v in float32 on tensor cores, as three float16 products each
// (halves_of_rows.cuh), with accumulators and exponentials in float32 (flash attention: online softmax).
//
// A block loops over the keys in tiles, which cp.async copies to shared memory. Eight threads cut each row in its place,
// and the rows of queries likewise. Weights are cut in registers, where they are: a row of weights of a tile is
// multiplied by the inverse scales of the values, and then has a scale of its own, so that values of any magnitude are
// right, whatever those of hidden keys. Sums of more than 64 terms are added up by the CUDA cores, as tensor cores
// truncate.
//
// With CUT, queries, keys and values arrive in halves, as columns of the results of products (heads_in_halves.cuh).
//
// Compile-time, besides the constants of warp_parts.cuh: SIZE_K, like SIZE_V; VECTOR, elements per copy (1, 2, 4); STAGES,
// at most 3; RESIDENT, blocks per multiprocessor; CUT.

#include "attention/warp_parts.cuh"
#include "attention/halves_of_rows.cuh"
#include "attention/halves_of_weights.cuh"

constexpr int PITCH_K = pitch_of(SIZE_K), PITCH_V = pitch_of(SIZE_V);
constexpr int PADDING = PITCH_K - SIZE_K;
constexpr int STAGE = TILE * (PITCH_K + PITCH_V);
constexpr int CHUNK = 4;  // sixteens of terms that tensor cores add up
constexpr bool STAY = TM * SIZE_K <= 64;  // whether registers hold the queries

// The queries of a warp, and the inverses of their scales.
struct Queries {
    u32 high[STAY ? TM : 1][STAY ? SIZE_K / 16 : 1][4], low[STAY ? TM : 1][STAY ? SIZE_K / 16 : 1][4];
    float inverse[TM][2];
    u32 place;

    __device__ __forceinline__ void read(const float* rows)
    {
        const int lane = threadIdx.x % 32;
        place = shared_address(rows + lane % 16 * PITCH_K) + lane / 16 * 16;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                inverse[i][half] = rows[(i * 16 + half * 8 + lane / 4) * PITCH_K + SIZE_K] * INVERSE_UNIT;
            if constexpr (STAY)
#pragma unroll
                for (int c = 0; c < SIZE_K / 16; ++c) load(high[i][c], low[i][c], i, c);
        }
    }

    __device__ __forceinline__ void load(u32 (&high)[4], u32 (&low)[4], int i, int c) const
    {
        const u32 from = place + i * 16 * PITCH_K * 4 + c * 32;
        ldmatrix_x4(high, from);
        ldmatrix_x4(low, from + SIZE_K * 2);
    }

    __device__ __forceinline__ void get(u32 (&to_high)[4], u32 (&to_low)[4], int i, int c) const
    {
        if constexpr (STAY) {
#pragma unroll
            for (int e = 0; e < 4; ++e) to_high[e] = high[i][c][e], to_low[e] = low[i][c][e];
        } else {
            load(to_high, to_low, i, c);
        }
    }
};

// Copies `count` rows from row `first` on to shared memory, each by eight threads; zeros from row `end` on. The first copy
// waits for the preceding kernel, unless that is done: hundreds of instructions come before it.
__device__ __forceinline__ void copy_rows(float* tile, int pitch, int count, int first, int end, const Source& from,
                                          bool& waited)
{
#pragma unroll 2
    for (int row = threadIdx.x / 8; row < count; row += THREADS / 8) {
        const bool inside = first + row < end;
        const float* const source = from(inside ? first + row : 0);
#pragma unroll 2
        for (int column = threadIdx.x % 8 * VECTOR; column < pitch - PADDING; column += 8 * VECTOR) {
            const bool exists = inside && column < from.size;
            if (!waited) grid_dependency_sync(), waited = true;
            cp_async<VECTOR>(shared_address(tile + row * pitch + column), source + (exists ? column : 0), exists);
        }
    }
}

// Copies rows in halves likewise, as they are once they are cut.
__device__ __forceinline__ void copy_halves(float* tile, int count, int first, int end, const HeadInHalves& from, bool& waited)
{
    const int chunk = threadIdx.x % 8;
#pragma unroll 2
    for (int row = threadIdx.x / 8; row < count; row += THREADS / 8) {
        const bool inside = first + row < end;
        const u32 to = shared_address(tile + row * (BLOCK_OF_HEAD + 4));
        if (!waited) grid_dependency_sync(), waited = true;
#pragma unroll
        for (int step = 0; step < BLOCK_OF_HEAD / 32; ++step)
            cp_async<4>(to + chunk / 4 * (BLOCK_OF_HEAD * 2) + step * 64 + chunk % 4 * 16,
                        (const float*)from.chunk(inside ? first + row : 0, step, chunk), inside);
        if (chunk == 0) cp_async<1>(to + BLOCK_OF_HEAD * 4, from.inverse(inside ? first + row : 0), inside);
    }
}

// Where the parts of a row go, if it exists.
template <int SIZE> struct RowStore {
    unsigned short* row;
    bool exists;

    __device__ __forceinline__ void operator()(int column, uint2 high, uint2 low) const
    {
        if (!exists) return;
        *(uint2*)(row + column) = high;
        *(uint2*)(row + column + SIZE) = low;
    }
};

// Cuts `count` rows, a multiple of 16, in their places: high parts, low parts, and the inverse of the scale.
template <int SIZE> __device__ __forceinline__ void cut_rows(float* tile, int count)
{
    constexpr int COUNT = SIZE <= 64 ? 2 : 1, DISTANCE = THREADS / 8;
#pragma unroll 1
    for (int first = threadIdx.x / 8; first < count; first += COUNT * DISTANCE) {
        // Rows of a warp exist together; those that do not exist are read like others, but not stored.
        RowsToCut<COUNT, RowStore<SIZE>> rows;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool exists = first + i * DISTANCE < count;
            float* const row = tile + (exists ? first + i * DISTANCE : first) * pitch_of(SIZE);
            rows.from[i] = row;
            rows.store[i] = {(unsigned short*)row, exists};
        }
        const Inverses<COUNT> inverses = cut<SIZE>(rows);
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (threadIdx.x % 8 == 0 && rows.store[i].exists) ((float*)rows.store[i].row)[SIZE] = inverses.at[i];
    }
}

// Adds the products of halves of 16 x 16 terms, the small ones apart.
__device__ __forceinline__ void multiply(float (&great)[2][4], float (&small)[2][4], const u32 (&a_high)[4],
                                         const u32 (&a_low)[4], const u32 (&b_high)[4], const u32 (&b_low)[4])
{
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        mma_m16n8k16(small[side], a_low, b_high[2 * side], b_high[2 * side + 1]);
        mma_m16n8k16(great[side], a_high, b_high[2 * side], b_high[2 * side + 1]);
    }
#pragma unroll
    for (int side = 0; side < 2; ++side) mma_m16n8k16(small[side], a_high, b_low[2 * side], b_low[2 * side + 1]);
}

// The scores of sixteen keys, number j.
__device__ __forceinline__ void multiply_queries(float (&scores)[TM][KEYS / 8][4], const Queries& queries,
                                                 const float* keys, int j)
{
    const int lane = threadIdx.x % 32;
    const u32 from = shared_address(keys + (j * 16 + lane % 8 + lane / 16 * 8) * PITCH_K) + lane / 8 % 2 * 16;
#pragma unroll 1
    for (int chunk = 0; chunk < SIZE_K / 16; chunk += CHUNK) {
        float great[TM][2][4] = {}, small[TM][2][4] = {};
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
            if (SIZE_K % 64 && chunk + c >= SIZE_K / 16) break;
            u32 high[4], low[4];
            ldmatrix_x4(high, from + (chunk + c) * 32);
            ldmatrix_x4(low, from + (chunk + c) * 32 + SIZE_K * 2);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                u32 of_high[4], of_low[4];
                queries.get(of_high, of_low, i, STAY ? c : chunk + c);
                multiply(great[i], small[i], of_high, of_low, high, low);
            }
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int q = 0; q < 4; ++q) scores[i][2 * j + side][q] += great[i][side][q] + small[i][side][q];
    }
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        const float inverse = keys[(j * 16 + q / 2 * 8 + lane % 4 * 2 + q % 2) * PITCH_K + SIZE_K] * INVERSE_UNIT;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                scores[i][2 * j + q / 2][half * 2 + q % 2] *= inverse * queries.inverse[i][half];
    }
}

// Adds the weighted values of `count` sixteens of keys to the results.
__device__ __forceinline__ void multiply_values(Accumulators& to, const WeightHalves<KEYS> (&weights)[TM],
                                                const float* values, int count)
{
    const int lane = threadIdx.x % 32;
    const u32 from = shared_address(values + lane % 16 * PITCH_V) + lane / 16 * 16;
#pragma unroll
    for (int j = 0; j < SIZE_V / 16; ++j) {
        float great[TM][2][4] = {}, small[TM][2][4] = {};
#pragma unroll
        for (int c = 0; c < KEYS / 16; ++c) {
            if (c >= count) break;
            u32 high[4], low[4];
            ldmatrix_x4_trans(high, from + c * 16 * PITCH_V * 4 + j * 32);
            ldmatrix_x4_trans(low, from + c * 16 * PITCH_V * 4 + j * 32 + SIZE_V * 2);
#pragma unroll
            for (int i = 0; i < TM; ++i) multiply(great[i], small[i], weights[i].high[c], weights[i].low[c], high, low);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    to.results[i][2 * j + side][q] += (great[i][side][q] + small[i][side][q]) * weights[i].inverse[q / 2];
    }
}

// Processes `count` sixteens of a warp's keys; `wait` returns when there are values.
template <typename Wait>
__device__ __forceinline__ void multiply_keys(Accumulators& to, const Queries& queries, const float* keys,
                                              const float* values, int count, int shift, int valid, int n,
                                              const MaskTile& ahead, const M* mask, const MaskSteps& of_mask,
                                              const Sizes& s, float scale, float softcap, const Wait& wait)
{
    float scores[TM][KEYS / 8][4] = {};
#pragma unroll
    for (int j = 0; j < KEYS / 16; ++j) {
        if (j >= count) break;
        multiply_queries(scores, queries, keys, j);
    }
    weigh_rows(to, scores, count, shift, valid, n, ahead, mask, of_mask, s, scale, softcap);
    wait();
    WeightHalves<KEYS> weights[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i)
        weights[i].read(scores[i], [&](int eight) {
            const float* const inverse = values + (eight * 8 + threadIdx.x % 4 * 2) * PITCH_V + SIZE_V;
            return make_float2(inverse[0] * INVERSE_UNIT, inverse[PITCH_V] * INVERSE_UNIT);
        }, count);
    multiply_values(to, weights, values, count);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_f16x3(const float* q, const float* k, const float* v, const unsigned char* cut_q, const unsigned char* cut_k,
                const unsigned char* cut_v, const M* mask, const M* second_mask, const float* past_k, const float* past_v, const long long* lengths,
                const float* sink, float* y, unsigned char* halves, float* left, float2* beside, Sizes s, Cuts cuts, Steps of_q, Steps of_k, Steps of_v, Steps of_y, MaskSteps of_mask, float scale, float softcap,
                int tiles)
{
    place_terms(of_mask, mask, second_mask);
    static_assert(GROUP == 1, "queries are many");
    extern __shared__ __align__(16) unsigned char shared[];
    float* const own = (float*)shared;
    float* const buffers = own + ROWS * PITCH_K;
    const int lane = threadIdx.x % 32, warp_m = threadIdx.x / 32 / WARPS_N, warp_n = threadIdx.x / 32 % WARPS_N;
    const int pair = blockIdx.x / tiles, tile = tiles - 1 - blockIdx.x % tiles, m0 = tile * ROWS;
    const int n = pair / s.heads, head = pair % s.heads, kv_head = head / (s.heads / s.kv_heads);
    bool waited = LENGTHS || SINK;
    if constexpr (LENGTHS || SINK) grid_dependency_sync();

    const int valid = LENGTHS ? int(lengths[n]) : s.total;
    const int shift = s.past + (LENGTHS ? valid - s.rows : 0);  // position of the first query
    const Keys range = keys_of_block(m0, ROWS, shift, valid, GRAIN, s);
    const int count = max(0, (range.end - range.begin + TILE - 1) / TILE);
    // Rows of keys of a step: sixteens of them are multiplied.
    const auto keys_in = [&](int step) { return min(TILE, (range.end - range.begin - step * TILE + 15) / 16 * 16); };
    const auto keys_at = [&](int step) { return buffers + step % STAGES * STAGE; };
    const auto tile_of = [&](int part, int step) {
        return part == QUERIES ? own : keys_at(step) + (part == VALUES ? TILE * PITCH_K : 0);
    };
    // One loop copies and cuts rows of all kinds: code that runs only a few times takes longer to arrive than to run.
    const Sources sources = {q, k, v, past_k, past_v, of_q, of_k, of_v};
    const auto copy_part = [&](int part, int step) {
        const bool is_q = part == QUERIES, is_v = part == VALUES;
        const int rows = is_q ? ROWS : keys_in(step), begin = is_q ? m0 : range.begin + step * TILE;
        const int end = is_q ? s.rows : range.end;
        if constexpr (CUT) {
            const HeadInHalves from = is_q ? HeadInHalves(cut_q, cuts.q, n * s.rows, head)
                                           : HeadInHalves(is_v ? cut_v : cut_k, is_v ? cuts.v : cuts.k, n * s.total, kv_head);
            copy_halves(tile_of(part, step), rows, begin, end, from, waited);
        } else {
            const Source from = sources.of(part, n, head, kv_head, s);
            copy_rows(tile_of(part, step), is_v ? PITCH_V : PITCH_K, rows, begin, end, from, waited);
        }
    };
    const auto cut_part = [&](int part, int step) {
        const int rows = part == QUERIES ? ROWS : keys_in(step);
        if (SIZE_K == SIZE_V || part != VALUES) cut_rows<SIZE_K>(tile_of(part, step), rows);
        else cut_rows<SIZE_V>(tile_of(part, step), rows);
    };

    Accumulators sums;
    clear(sums);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
            sums.rows[i][half] = {head, min(m0 + (warp_m * TM + i) * 16 + half * 8 + lane / 4, s.rows - 1)};
    begin_with_sinks(sums, sink, scale);
    Queries queries;
    const bool has_rows = m0 + warp_m * TM * 16 < s.rows;
    // Tiles are loaded two steps ahead and cut one step ahead, so that one barrier a step suffices. If they are cut already,
    // the first one is multiplied as soon as its keys are there, and its values come meanwhile.
#pragma unroll 1
    for (int step = -2; step < count; ++step) {
        if (step + 2 < count)
#pragma unroll 1
            for (int part = step == -2 ? QUERIES : KEYS_OF_STEP; part <= VALUES; ++part) {
                copy_part(part, step + 2);
                if (CUT && step == -2 && part == KEYS_OF_STEP) cp_async_commit();
            }
        cp_async_commit();
        if (step == -2) continue;
        if (CUT && step == -1) cp_async_wait<2>();
        else if (!CUT || step > 0) cp_async_wait<1>();
        __syncwarp();
        if (!CUT && step + 1 < count)
#pragma unroll 1
            for (int part = step == -1 ? QUERIES : KEYS_OF_STEP; part <= VALUES; ++part) cut_part(part, step + 1);
        if (step >= 0) {
            const MaskTile ahead = load_mask(sums.rows, range.begin + step * TILE, n, mask, of_mask, s);
            const int there = has_rows ? min(KEYS / 16, (range.end - ahead.first + 15) / 16) : 0;
            const float* const keys = keys_at(step) + warp_n * KEYS * PITCH_K;
            const float* const values = keys_at(step) + TILE * PITCH_K + warp_n * KEYS * PITCH_V;
            const auto wait = [&] {
                if (!CUT || step > 0) return;
                cp_async_wait<1>();
                __syncthreads();
            };
            multiply_keys(sums, queries, keys, values, there, shift, valid, n, ahead, mask, of_mask, s, scale, softcap, wait);
        }
        __syncthreads();
        if (step == -1) queries.read(own + warp_m * TM * 16 * PITCH_K);
    }
    if (!waited) grid_dependency_sync();  // there are no keys
#if IN_HALVES
    const int all = int(gridDim.x) / (tiles * s.heads) * s.rows;
    const Results to = {y, left, beside, of_y, {halves, (all + 7) / 8 * 8, s.heads * SIZE_V}};
#else
    const Results to = {y, left, beside, of_y};
#endif
    finish(sums, shared, nullptr, n, m0, head, s.rows, to, s, steepness(scale));
}
