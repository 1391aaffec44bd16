// Rows of features on the device: of three types, dense or out of a bank, and their norms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/math.h"
#include "common/reduce.cuh"
#include "cuda/paddle_chunk.cuh"

namespace paddle_ext {

// Where the rows of a task lie: in its own block, or scattered in a bank.
template <typename Feature>
struct DeviceRows {
    const Feature* base;
    const int64_t* index;
    int64_t D, N;

    __device__ const Feature* operator()(int64_t i) const {
        if (index == nullptr) return base + i * D;
        // Without validation a bad index must not read outside the bank.
        const int64_t row = min(max(index[i], int64_t(0)), N - 1);
        return base + row * D;
    }
};

template <typename Feature>
__device__ inline DeviceRows<Feature> device_rows(const void* features, const int64_t* index,
                                                  int64_t task, int64_t rows,
                                                  const PaddleSizes& n) {
    const auto* base = static_cast<const Feature*>(features);
    if (index != nullptr) return {base, index + task * rows, n.D, n.N};
    return {base + task * rows * n.D, nullptr, n.D, n.N};
}

template <typename Feature>
__device__ inline DeviceRows<Feature> query_rows(const PaddleParams& p, int64_t task) {
    return device_rows<Feature>(p.query, p.query_index, task, p.size.Q, p.size);
}

template <typename Feature>
__device__ inline DeviceRows<Feature> support_rows(const PaddleParams& p, int64_t task) {
    const int64_t own = p.size.support_shared ? 0 : task;
    return device_rows<Feature>(p.support, p.support_index, own, p.size.S, p.size);
}

// 1 / ||row|| by one warp, and 0 for a zero row, which so stays zero.
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
        largest =
            fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
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
    return fminf(ldexpf(1.0f / sqrtf(warp_sum(sum)), -exponent), 3e38f);
}

template <typename Feature>
__device__ inline float warp_inverse_norm(const Feature* row, int64_t D, bool aligned) {
    float sum = 0.0f;
    for (int64_t d = 4 * (threadIdx.x % 32); d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        sum += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    return inverse_norm(row, D, aligned, warp_sum(sum));
}

// Rows of features, and the rows that are made of them, can be read four at a time.
inline bool rows_aligned(const Chunk& c) {
    const int64_t bytes = c.call.dtype == DType::kFloat32 ? 16 : 8;
    const auto aligned = [&](const void* at) {
        return reinterpret_cast<uintptr_t>(at) % bytes == 0;
    };
    return c.call.size.D % 4 == 0 && aligned(c.call.support) && aligned(c.call.query);
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
