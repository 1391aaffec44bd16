// The labelled rows of a class, seen by its warp: their norms and their mean.
#pragma once

#include "common/device.cuh"
#include "common/labelled.h"
#include "common/reduce.cuh"
#include "common/rows.cuh"

namespace paddle_ext {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Arrays of all tasks in the workspace.
struct LabelledPlan {
    int* order;    // [B, S]      rows, by class
    int* start;    // [B, K + 1]  where a class begins in `order`
    int* chosen;   // [B, R]      rows that calibrate
    bool aligned;  // rows can be read four numbers at a time
    int64_t bytes;

    LabelledPlan(const LabelledParams& p, bool aligned) : aligned(aligned) {
        SharedArena arena(p.workspace);
        order = arena.take<int>(p.B * p.S);
        start = arena.take<int>(p.B * (p.K + 1));
        chosen = arena.take<int>(p.B * p.R);
        bytes = arena.used();
    }
};

__device__ inline float4 centred(float4 x, float first, float4 c) {
    return make_float4(x.x * first - c.x, x.y * first - c.y, x.z * first - c.z, x.w * first - c.w);
}

__device__ inline void store_row4(float* row, int64_t d, int64_t D, bool aligned, float4 value) {
    if (aligned) {
        *reinterpret_cast<float4*>(row + d) = value;
        return;
    }
    row[d] = value.x;
    if (d + 1 < D) row[d + 1] = value.y;
    if (d + 2 < D) row[d + 2] = value.z;
    if (d + 3 < D) row[d + 3] = value.w;
}

__device__ inline void add_scaled(float4& sum, float4 x, float factor) {
    sum.x += x.x * factor;
    sum.y += x.y * factor;
    sum.z += x.z * factor;
    sum.w += x.w * factor;
}

// One class, seen by its warp: its rows are order[begin .. end).
struct ClassRows {
    const float* support;
    const float* centre;
    float *firsts, *seconds, *mean;
    const int* order;
    int begin, end;
    int64_t D;
    bool aligned;

    __device__ ClassRows(const LabelledParams& p, const LabelledPlan& plan, int64_t item) {
        const int64_t task = item / p.K, k = item % p.K;
        D = p.D;
        aligned = plan.aligned;
        support = static_cast<const float*>(p.support) + task * p.S * D;
        centre = static_cast<const float*>(p.centre) + task * D;
        firsts = static_cast<float*>(p.first) + task * p.S;
        seconds = static_cast<float*>(p.second) + task * p.S;
        mean = static_cast<float*>(p.means) + item * D;
        order = plan.order + task * p.S;
        begin = plan.start[task * (p.K + 1) + k];
        end = plan.start[task * (p.K + 1) + k + 1];
    }

    // Four numbers of a row, scaled and less the centre in the second pass.
    template <bool kCentred>
    __device__ float4 load(int64_t s, float first, int64_t d) const {
        const float4 x = load_row4(support + s * D, d, D, aligned);
        return kCentred ? centred(x, first, load_row4(centre, d, D, aligned)) : x;
    }
};

// A warp for each class of each task: norms of its rows, and their mean. The first pass has no centre.
// A row is held in kHeld registers of a lane; with 0 of them it is read twice.
template <bool kCentred, int kHeld>
__global__ void __launch_bounds__(kThreads) means_kernel(LabelledParams p, LabelledPlan plan) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * p.K) return;
    const int lane = threadIdx.x % 32;
    const ClassRows c(p, plan, item);
    float* const factors = kCentred ? c.seconds : c.firsts;
    float4 sum[kHeld > 0 ? kHeld : 1] = {};
    for (int i = c.begin; i < c.end; ++i) {
        const int64_t s = c.order[i];
        const float first = kCentred ? c.firsts[s] : 1.0f;
        float4 x[kHeld > 0 ? kHeld : 1];
        float squared = 0;
        const auto add = [&](float4 v) {
            squared += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            return v;
        };
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
            x[h] = add(c.load<kCentred>(s, first, 4 * lane + 128 * h));
        }
        for (int64_t d = 4 * lane; kHeld == 0 && d < c.D; d += 128) {
            add(c.load<kCentred>(s, first, d));
        }
        squared = warp_sum(squared);
        const float factor = kCentred ? inverse_of_centred(squared)
                                      : inverse_norm(c.support + s * c.D, c.D, c.aligned, squared);
        if (lane == 0) factors[s] = factor;
#pragma unroll
        for (int h = 0; h < kHeld; ++h) add_scaled(sum[h], x[h], factor);
    }
    const float share = 1.0f / float(max(c.end - c.begin, 1));
    const auto write = [&](int64_t d, float4 v) {
        if (d >= c.D) return;
        v = make_float4(v.x * share, v.y * share, v.z * share, v.w * share);
        store_row4(c.mean, d, c.D, c.aligned, v);
    };
#pragma unroll
    for (int h = 0; h < kHeld; ++h) write(4 * lane + 128 * h, sum[h]);
    if constexpr (kHeld > 0) return;
    __syncwarp();
    for (int64_t d = 4 * lane; d < c.D; d += 128) {
        float4 total = make_float4(0, 0, 0, 0);
        for (int i = c.begin; i < c.end; ++i) {
            const int64_t s = c.order[i];
            const float first = kCentred ? c.firsts[s] : 1.0f;
            add_scaled(total, c.load<kCentred>(s, first, d), factors[s]);
        }
        write(d, total);
    }
}

template <bool kCentred>
void launch_means(const LabelledParams& p, const LabelledPlan& plan, cudaStream_t stream) {
    const unsigned blocks = grid_size(ceil_div(p.B * p.K, int64_t(kWarps)));
    const int64_t held = ceil_div(p.D, int64_t(128));
    const auto kernel = held <= 1   ? means_kernel<kCentred, 1>
                        : held <= 4 ? means_kernel<kCentred, 4>
                        : held <= 8 ? means_kernel<kCentred, 8>
                                    : means_kernel<kCentred, 0>;
    kernel<<<blocks, kThreads, 0, stream>>>(p, plan);
    check_launch("means_kernel");
}

}  // namespace paddle_ext
