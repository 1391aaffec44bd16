// Feature rows of a call: dense or from a bank.
#pragma once

#include "common/rows.cuh"
#include "cuda/paddle_chunk.cuh"

namespace paddle_ext {

// Where the rows of a task are stored: in its own block, or scattered in a bank.
template <typename Feature>
struct DeviceRows {
    const Feature* base;
    const int64_t* index;
    int64_t D, N;

    __device__ const Feature* operator()(int64_t i) const {
        if (index == nullptr) return base + i * D;
        return base + load_index(index, i, N) * D;
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

// One number, or two neighbours at an address aligned to both.
template <int Width, typename Feature>
__device__ inline void load_features(const Feature* from, float (&to)[Width]) {
    if constexpr (Width == 1) {
        to[0] = to_float(*from);
    } else if constexpr (std::is_same_v<Feature, float>) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        to[0] = two.x, to[1] = two.y;
    } else {
        const unsigned two = *reinterpret_cast<const unsigned*>(from);
        to[0] = to_float(reinterpret_cast<const Feature*>(&two)[0]);
        to[1] = to_float(reinterpret_cast<const Feature*>(&two)[1]);
    }
}

inline bool rows_aligned(const Chunk& c) {
    return rows_aligned(c.call.dtype, c.call.size.D, {c.call.support, c.call.query});
}

}  // namespace paddle_ext
