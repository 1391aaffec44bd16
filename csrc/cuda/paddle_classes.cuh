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
// With a learned prior the v-step follows once all classes are counted.
template <bool Plain>
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
        if (!b.moving<Plain>()) {
            b.s.shift[k] = fabsf(total[0] - b.s.held[k]);
            b.s.held[k] = total[0];
            if (!b.dirichlet<Plain>()) set_dual(b, k);
            continue;
        }
        update_class(b, k, total);
        if (!b.dirichlet<Plain>()) set_dual(b, k);
    }
}

// The v-step of all classes with a learned prior. The prior takes its step first; every thread adds
// its sums in the same order. The sums of the warps reuse the memory of those of the u-step.
__device__ inline void learn_prior(const Block& b, Proportions& proportions) {
    double slope = 0.0, curvature = 0.0;
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        const PriorTerm term = class_term(double(b.s.held[k]), proportions.concentration);
        slope += term.slope;
        curvature += term.curvature;
    }
    slope = warp_sum(slope);
    curvature = warp_sum(curvature);
    double* const part = reinterpret_cast<double*>(b.s.part);
    if (b.lane == 0) {
        part[2 * b.warp] = slope;
        part[2 * b.warp + 1] = curvature;
    }
    __syncthreads();  // the sums of all warps are complete
    slope = curvature = 0.0;
    for (int warp = 0; warp < b.warps; ++warp) {
        slope += part[2 * warp];
        curvature += part[2 * warp + 1];
    }
    proportions.learn(slope, curvature);
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        set_logit(b, k, b.limit.weight * float(proportions.dirichlet_dual(double(b.s.held[k]))));
    }
}

}  // namespace paddle_ext
