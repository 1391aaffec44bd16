// Feature rows of three types on the device: labels, bank indices, norms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "common/math.h"
#include "common/params.h"
#include "common/reduce.cuh"

namespace paddle_ext {

// The operators do not inspect labels and indices, which may be on a busy device. A value out of
// range must not become an address, so kernels load both through these two functions.

// The class of a support row; -1, which matches no class, for a label outside [0, K).
__device__ inline int load_label(const int64_t* labels, int64_t row, int64_t K) {
    const int64_t label = labels[row];
    return label >= 0 && label < K ? int(label) : -1;
}

// A row of a bank of N rows; the nearest one for an index outside [0, N).
__device__ inline int64_t load_index(const int64_t* index, int64_t row, int64_t N) {
    return min(max(index[row], int64_t(0)), N - 1);
}

// 1 / ||row|| by one warp; 0 for a zero row, which therefore stays zero.
template <typename Feature>
__device__ inline float inverse_norm(const Feature* row, int64_t D, bool aligned, float squared) {
    if (squared > float(Range<float>::kMinSquaredNorm) &&
        squared < float(Range<float>::kMaxSquaredNorm)) {
        return 1.0f / sqrtf(squared);
    }
    const int lane = threadIdx.x % 32;
    float largest = 0.0f;
    for (int64_t d = 4 * lane; d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        largest = fmaxf(largest, largest_of(x));
    }
    largest = warp_max(largest);
    if (largest == 0.0f) return 0.0f;
    int exponent;
    frexpf(largest, &exponent);
    float sum = 0.0f;
    for (int64_t d = 4 * lane; d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        const float a = ldexpf(x.x, -exponent), b = ldexpf(x.y, -exponent);
        const float c = ldexpf(x.z, -exponent), e = ldexpf(x.w, -exponent);
        sum += a * a + b * b + c * c + e * e;
    }
    return fminf(ldexpf(1.0f / sqrtf(warp_sum(sum)), -exponent), Range<float>::kInfinity);
}

template <typename Feature>
__device__ inline float warp_inverse_norm(const Feature* row, int64_t D, bool aligned) {
    float sum = 0.0f;
    for (int64_t d = 4 * (threadIdx.x % 32); d < D; d += 128) {
        sum += squared_norm(load_row4(row, d, D, aligned));
    }
    return inverse_norm(row, D, aligned, warp_sum(sum));
}

// Whether rows of D features at these addresses can be read four at a time.
inline bool rows_aligned(DType dtype, int64_t D, std::initializer_list<const void*> addresses) {
    const uintptr_t bytes = dtype == DType::kFloat32 ? 16 : 8;
    for (const void* at : addresses) {
        if (reinterpret_cast<uintptr_t>(at) % bytes != 0) return false;
    }
    return D % 4 == 0;
}

// Calls body with a null pointer of the feature type.
template <typename Body>
void with_feature_type(DType dtype, const Body& body) {
    switch (dtype) {
        case DType::kFloat16: return body(static_cast<__half*>(nullptr));
        case DType::kBFloat16: return body(static_cast<__nv_bfloat16*>(nullptr));
        default: return body(static_cast<float*>(nullptr));
    }
}

}  // namespace paddle_ext
