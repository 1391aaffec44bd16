// Launches the two products of TIM: their tiles are as wide as the classes allow.
#pragma once

#include <type_traits>

#include "common/device.cuh"

namespace paddle_ext {

// Calls body with the tile as a constant.
template <typename Body>
void with_class_tile(int tile, const Body& body) {
    switch (tile) {
        case 32: return body(std::integral_constant<int, 32>());
        case 64: return body(std::integral_constant<int, 64>());
        case 96: return body(std::integral_constant<int, 96>());
        case 128: return body(std::integral_constant<int, 128>());
        default: return body(std::integral_constant<int, 160>());
    }
}

// Few padding columns, but not with narrow tiles, which read the rows repeatedly: that costs about
// as much as 32 more columns.
inline int choose_class_tile(int64_t K) {
    const auto cost = [&](int tile) { return ceil_div(K, int64_t(tile)) * (tile + 32); };
    int best = 32;
    for (const int tile : {64, 96, 128, 160}) {
        if (cost(tile) <= cost(best)) best = tile;
    }
    return best;
}

// `bytes` must be the same in every launch of a kernel, see allow_all_shared.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
}

}  // namespace paddle_ext
