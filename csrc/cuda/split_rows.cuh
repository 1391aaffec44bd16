// Rows of numbers split into halves for the tensor cores, in the groups of common/mma.cuh, padded
// with zeros.
#pragma once

#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

namespace paddle_ext {

// Numbers are at most 1.5 in rows (a feature weighs at most 2) and the root of kMostRows in factors;
// times this, their low halves keep their bits.
constexpr float kSplitFactor = 64.0f, kProductFactor = 1.0f / (kSplitFactor * kSplitFactor);

// Numbers and halves in a padded row of D numbers.
__host__ __device__ inline int64_t row_numbers(int64_t D) { return round_up(D, int64_t(kGroup)); }
__host__ __device__ inline int64_t row_halves(int64_t D) { return group_offset(row_numbers(D)); }

// Numbers d and d + 1 of a row, for an even d.
__device__ inline void store_row2(__half* row, int64_t d, float first, float second) {
    store_halves(row + group_offset(d), first * kSplitFactor, second * kSplitFactor);
}
__device__ inline float2 load_row2(const __half* row, int64_t d) {
    const auto at = reinterpret_cast<const __half2*>(row + group_offset(d));
    const float2 high = __half22float2(at[0]), low = __half22float2(at[kGroup / 2]);
    return make_float2((high.x + low.x) / kSplitFactor, (high.y + low.y) / kSplitFactor);
}

// Four numbers, for a d divisible by four.
__device__ inline void store_row4(__half* row, int64_t d, float4 x) {
    alignas(8) __half high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const HighLow parts = split((&x.x)[i] * kSplitFactor);
        high[i] = parts.high, low[i] = parts.low;
    }
    const auto to = reinterpret_cast<uint2*>(row + group_offset(d));
    to[0] = *reinterpret_cast<const uint2*>(high);
    to[kGroup / 4] = *reinterpret_cast<const uint2*>(low);
}
__device__ inline float4 load_row4(const __half* row, int64_t d) {
    const float4 high = load4(row + group_offset(d)), low = load4(row + group_offset(d) + kGroup);
    return (high + low) * (1.0f / kSplitFactor);
}

}  // namespace paddle_ext
