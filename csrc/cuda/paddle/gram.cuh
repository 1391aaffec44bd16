// G du on the tensor cores, for the block solver: every number is two halves (cuda/mma.cuh), so
// the product has float precision.
//
// A warp computes the products of its own 16 queries with n-tiles of 8 classes, in steps of 16
// queries: C[16, 8] += A[16, 16] B[16, 8]. Rows and columns are ordered so that a thread holds the
// same cells as elsewhere: row r of C is query 2 r of the warp, row r + 8 query 2 r + 1; the
// columns 2 t and 2 t + 1 of the n-tiles are classes of quarter t. A step takes its queries in the
// order in which a thread loads them: 4 t and 4 t + 1, then 4 t + 2 and 4 t + 3.
//
// Halves of G are stored in the order of the lanes, so each lane reads what it wrote. Each row is
// scaled by a power of two: entries much smaller than those of a far query keep their precision.
#pragma once

#include "cuda/mma.cuh"

namespace paddle_ext {

constexpr int kColumns = 8;             // classes of an n-tile
constexpr float kChangeScale = 16384;   // changes are at most 1
constexpr int kRowBits = 14;            // the largest number of a row of G is below 2^this
constexpr int kLeastRowExponent = -90;  // two to minus this, with the scales above, is a number
constexpr int kStepPieces = 2 * 32;     // of 16 bytes: halves of G for one step of one warp
constexpr int kColumnPieces = 32;       // of 16 bytes: changes of an n-tile and one warp's queries

// Splits this thread's two rows of G; returns the factor for the products of each. `rows` of them
// are inside the matrix.
__device__ inline float2 split_gram(const float* gram, int rows, int Qp, int quarter, int lane,
                                    uint4* halves) {
    const int steps = Qp / 16;
    const auto load = [&](int step, int row) {
        if (row >= rows) return make_float4(0, 0, 0, 0);
        return *reinterpret_cast<const float4*>(gram + int64_t(row) * Qp + 16 * step + 4 * quarter);
    };
    float largest[2] = {};
    for (int step = 0; step < steps; ++step) {
        largest[0] = fmaxf(largest[0], largest_of(load(step, 0)));
        largest[1] = fmaxf(largest[1], largest_of(load(step, 1)));
    }
    float scale[2], unscale[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        int exponent = 0;
        const float most = quad_max(largest[row]);
        if (most > 0.0f && isfinite(most)) frexpf(most, &exponent);
        exponent = max(exponent, kLeastRowExponent);
        scale[row] = ldexpf(1.0f, kRowBits - exponent);
        unscale[row] = ldexpf(1.0f / kChangeScale, exponent - kRowBits);
    }
    for (int step = 0; step < steps; ++step) {
        const float4 x = load(step, 0), y = load(step, 1);
        const uint2 x0 = split_pair(x.x * scale[0], x.y * scale[0]);
        const uint2 x1 = split_pair(x.z * scale[0], x.w * scale[0]);
        const uint2 y0 = split_pair(y.x * scale[1], y.y * scale[1]);
        const uint2 y1 = split_pair(y.z * scale[1], y.w * scale[1]);
        uint4* const to = halves + step * kStepPieces + lane;
        to[0] = make_uint4(x0.x, y0.x, x1.x, y1.x);
        to[32] = make_uint4(x0.y, y0.y, x1.y, y1.y);
    }
    return make_float2(unscale[0], unscale[1]);
}

// Where the changes of an n-tile are stored. A class has 64 bytes: for every four queries the high
// parts, then the low parts; classes and queries are permuted so that reads have no bank conflicts.
struct ChangePlaces {
    int write[2];  // of this thread's two classes, in units of 4 bytes; the low parts two further
    int read;      // in units of 16 bytes

    __device__ ChangePlaces(int pair, int quarter) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int four = pair / 2 ^ (quarter >> 1) * 2;
            write[i] = (2 * quarter + (i ^ (quarter & 1))) * 16 + 4 * four + pair % 2;
        }
        read = (pair ^ (pair >> 1 & 1)) * 4 + (quarter ^ (pair >> 2) * 2);
    }
};

// Stores the changes of this thread's two queries and 2 * Columns classes for all warps to read.
template <int Columns>
__device__ inline void place_changes(uint4* changes, int warp, const ChangePlaces& at,
                                     const float2 (&change)[2 * Columns]) {
    unsigned* const first = reinterpret_cast<unsigned*>(changes + warp * Columns * kColumnPieces);
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        unsigned* const to = first + i / 2 * (4 * kColumnPieces) + at.write[i % 2];
        const uint2 parts = split_pair(change[i].x * kChangeScale, change[i].y * kChangeScale);
        to[0] = parts.x;
        to[2] = parts.y;
    }
}

// G du of this thread's two queries and 2 * Columns classes; `halves` belongs to its warp.
template <int Columns>
__device__ inline void multiply_changes(const uint4* halves, const uint4* changes, int steps,
                                        int lane, const ChangePlaces& at, float2 unscale,
                                        float2 (&product)[2 * Columns]) {
    float high[Columns][4] = {}, mixed[Columns][4] = {};
    for (int step = 0; step < steps; ++step) {
        const uint4 h = halves[step * kStepPieces + lane];
        const uint4 l = halves[step * kStepPieces + 32 + lane];
        const unsigned large[4] = {h.x, h.y, h.z, h.w}, small[4] = {l.x, l.y, l.z, l.w};
        uint4 d[Columns];
#pragma unroll
        for (int n = 0; n < Columns; ++n) {
            d[n] = changes[(step * Columns + n) * kColumnPieces + at.read];
        }
        // Alternates between n-tiles, so that no product waits for the previous one.
#pragma unroll
        for (int n = 0; n < Columns; ++n) multiply_add(mixed[n], large, d[n].z, d[n].w);
#pragma unroll
        for (int n = 0; n < Columns; ++n) multiply_add(high[n], large, d[n].x, d[n].y);
#pragma unroll
        for (int n = 0; n < Columns; ++n) multiply_add(mixed[n], small, d[n].x, d[n].y);
    }
#pragma unroll
    for (int n = 0; n < Columns; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            product[2 * n + i] = make_float2((high[n][i] + mixed[n][i]) * unscale.x,
                                             (high[n][2 + i] + mixed[n][2 + i]) * unscale.y);
        }
    }
}

// Adds halves of 2 * Half values across two lanes: the lower lane gets the first half, the upper
// lane the second.
template <int Half>
__device__ inline void share_sums(float* value, bool upper, int distance) {
#pragma unroll
    for (int i = 0; i < Half; ++i) {
        const float low = value[i], high = value[i + Half];
        const float other = __shfl_xor_sync(kAllLanes, upper ? low : high, distance);
        value[i] = (upper ? high : low) + other;
    }
}

// Sums 8 * Count values over the eight lanes that have the same position in their quads: lane
// `pair` of them gets the sums of the values from Count * pair on, in value[0] and following.
template <int Count>
__device__ inline void sum_over_pairs(float (&value)[8 * Count], int pair) {
    share_sums<4 * Count>(value, (pair & 4) != 0, 16);
    share_sums<2 * Count>(value, (pair & 2) != 0, 8);
    share_sums<Count>(value, (pair & 1) != 0, 4);
}

}  // namespace paddle_ext
