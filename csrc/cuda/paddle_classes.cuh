// The v-step and the w-step of the block solver: from sums over the queries to slopes and biases.
#pragma once

#include "cuda/paddle_block.cuh"

namespace paddle_ext {

__device__ inline void set_dual(const Block& b, int k) {
    set_logit(b, k, dual_term(b, b.s.held[k]));
}

// The w-step of one class, from the sums of u, du, du (G du) and du M over all queries.
__device__ inline void update_class(const Block& b, int k, const float (&total)[4]) {
    const float mass = b.s.mass[k], fresh = safe_mass(b.count[k] + total[0]);
    const double norm = b.s.norm[k];
    b.s.shift[k] = prototype_shift(total[1], total[2], total[3], mass, float(norm), fresh);
    b.s.held[k] = total[0];
    b.s.mass[k] = fresh;
    b.s.norm[k] = norm + 2.0 * double(total[3]) + double(total[2]);
}

// v-step and w-step of the classes of a batch of tiles, one thread each. Bit i of `moved`: tile i.
__device__ inline void update_classes(const Block& b, const int* classes, int tiles,
                                      unsigned moved) {
    const int stride = b.warps * kBatch * kTile;
    for (int slot = threadIdx.x; slot < tiles * kTile; slot += blockDim.x) {
        const int k = classes[slot];
        if (k < 0) continue;
        if ((moved >> (slot / kTile) & 1u) == 0) {
            b.s.shift[k] = 0.0f;
            continue;
        }
        float total[4] = {};
        for (int warp = 0; warp < b.warps; ++warp) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                total[i] += b.s.part[i * stride + warp * kBatch * kTile + slot];
            }
        }
        update_class(b, k, total);
        set_dual(b, k);
    }
}

}  // namespace paddle_ext
