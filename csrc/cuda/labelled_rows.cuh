// The two passes over labelled rows: norms and centre, then norms after centring and class means.
#pragma once

#include "common/device.cuh"
#include "common/labelled.h"
#include "common/reduce.cuh"
#include "common/rows.cuh"

namespace paddle_ext {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPartRows = 128;  // rows per block of the first pass

// Arrays of all tasks in the workspace.
struct LabelledPlan {
    int* order;   // [B, S]      rows, by class
    int* start;   // [B, K + 1]  where a class begins in `order`
    int* chosen;  // [B, R]      calibration rows
    float* sums;  // [B, parts, D] partial sums of the rows
    int64_t parts;
    bool aligned;  // rows can be read four numbers at a time
    int64_t bytes;

    LabelledPlan(const LabelledParams& p, bool aligned)
        : parts(ceil_div(p.S, int64_t(kPartRows))), aligned(aligned) {
        SharedArena arena(p.workspace);
        order = arena.take<int>(p.B * p.S);
        start = arena.take<int>(p.B * (p.K + 1));
        chosen = arena.take<int>(p.B * p.R);
        sums = arena.take<float>(p.B * parts * p.D);
        bytes = arena.used();
    }
};

__device__ inline float4 centred(float4 x, float first, float4 c) { return x * first - c; }

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

// Registers per lane, of four numbers each, that hold a row; 0 if it is too long.
inline int rows_held(int64_t D) { return D <= 128 ? 1 : D <= 512 ? 4 : D <= 1024 ? 8 : 0; }

// --- first pass, for rows that fit in registers --------------------------------------------------

// One block per part of the rows of a task, one warp per two rows: norms, and the part's share of
// the mean of the class means.
template <int kHeld>
__global__ void __launch_bounds__(kThreads) rows_kernel(LabelledParams p, LabelledPlan plan) {
    extern __shared__ float warp_sums[];  // [kWarps, 128 kHeld]
    const int64_t task = blockIdx.x / plan.parts, part = blockIdx.x % plan.parts, D = p.D;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* const support = static_cast<const float*>(p.support) + task * p.S * D;
    const float* const shots = static_cast<const float*>(p.shots) + task * p.K;
    float* const firsts = static_cast<float*>(p.first) + task * p.S;
    const int64_t end = min((part + 1) * kPartRows, p.S);
    float4 sum[kHeld] = {};
    for (int64_t s = part * kPartRows + 2 * warp; s < end; s += 2 * kWarps) {
        float4 x[2][kHeld];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* const row = support + min(s + i, end - 1) * D;
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[i][h] = load_row4(row, 4 * lane + 128 * h, D, plan.aligned);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (s + i >= end) break;
            float squared = 0;
#pragma unroll
            for (int h = 0; h < kHeld; ++h) squared += squared_norm(x[i][h]);
            const float first =
                inverse_norm(support + (s + i) * D, D, plan.aligned, warp_sum(squared));
            const int k = load_label(p.labels + task * p.S, s + i, p.K);
            if (lane == 0) {
                firsts[s + i] = first;
                if (p.finite != nullptr && !plainly_finite(first)) p.finite[task] = false;
            }
            const float factor = k < 0 ? 0.0f : first / (float(p.K) * shots[k]);
#pragma unroll
            for (int h = 0; h < kHeld; ++h) sum[h] = sum[h] + x[i][h] * factor;
        }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        *reinterpret_cast<float4*>(warp_sums + (warp * kHeld + h) * 128 + 4 * lane) = sum[h];
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        float total = 0;
        for (int other = 0; other < kWarps; ++other) total += warp_sums[other * kHeld * 128 + d];
        plan.sums[blockIdx.x * D + d] = total;
    }
}

inline void launch_rows(const LabelledParams& p, const LabelledPlan& plan, cudaStream_t stream) {
    const int held = rows_held(p.D);
    const auto kernel = held == 1 ? rows_kernel<1> : held == 4 ? rows_kernel<4> : rows_kernel<8>;
    const int64_t bytes = int64_t(sizeof(float)) * kWarps * held * 128;
    launch("rows_kernel", kernel, p.B * plan.parts, kThreads, bytes, stream, p, plan);
}

// --- rows of a class -----------------------------------------------------------------------------

// One class from the view of its warp: its rows are order[begin .. end).
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

    // Four numbers of a row, scaled and, in the second pass, centred.
    template <bool kCentred>
    __device__ float4 load(int64_t s, float first, int64_t d) const {
        const float4 x = load_row4(support + s * D, d, D, aligned);
        return kCentred ? centred(x, first, load_row4(centre, d, D, aligned)) : x;
    }

    __device__ void write(int64_t d, float4 v) const {
        if (d >= D) return;
        const float share = 1.0f / float(max(end - begin, 1));
        store_row4(mean, d, D, aligned, v * share);
    }
};

// One warp per class and task: reads the rows twice, for their norms and their mean. The first pass
// has no centre.
template <bool kCentred>
__global__ void __launch_bounds__(kThreads) long_means_kernel(LabelledParams p, LabelledPlan plan) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * p.K) return;
    const int lane = threadIdx.x % 32;
    const ClassRows c(p, plan, item);
    float* const factors = kCentred ? c.seconds : c.firsts;
    for (int i = c.begin; i < c.end; ++i) {
        const int64_t s = c.order[i];
        const float first = kCentred ? c.firsts[s] : 1.0f;
        float squared = 0;
        for (int64_t d = 4 * lane; d < c.D; d += 128) {
            squared += squared_norm(c.load<kCentred>(s, first, d));
        }
        squared = warp_sum(squared);
        const float factor = kCentred ? inverse_of_centred(squared)
                                      : inverse_norm(c.support + s * c.D, c.D, c.aligned, squared);
        if (lane == 0) factors[s] = factor;
        if (!kCentred && lane == 0 && p.finite != nullptr && !plainly_finite(factor)) {
            p.finite[item / p.K] = false;
        }
    }
    __syncwarp();
    for (int64_t d = 4 * lane; d < c.D; d += 128) {
        float4 total = make_float4(0, 0, 0, 0);
        for (int i = c.begin; i < c.end; ++i) {
            const int64_t s = c.order[i];
            const float first = kCentred ? c.firsts[s] : 1.0f;
            total = total + c.load<kCentred>(s, first, d) * factors[s];
        }
        c.write(d, total);
    }
}

// The second pass, with two rows in registers at a time.
template <int kHeld>
__global__ void __launch_bounds__(kThreads) means_kernel(LabelledParams p, LabelledPlan plan) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * p.K) return;
    const int lane = threadIdx.x % 32;
    const ClassRows c(p, plan, item);
    float4 sum[kHeld] = {}, centre[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        centre[h] = load_row4(c.centre, 4 * lane + 128 * h, c.D, c.aligned);
    }
    for (int i = c.begin; i < c.end; i += 2) {
        float4 x[2][kHeld];
        float first[2], squared[2] = {};
        int64_t rows[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            rows[j] = c.order[min(i + j, c.end - 1)];
            first[j] = c.firsts[rows[j]];
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[j][h] = load_row4(c.support + rows[j] * c.D, 4 * lane + 128 * h, c.D, c.aligned);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[j][h] = centred(x[j][h], first[j], centre[h]);
                squared[j] += squared_norm(x[j][h]);
            }
            const float second = inverse_of_centred(warp_sum(squared[j]));
            if (i + j >= c.end) continue;
            if (lane == 0) c.seconds[rows[j]] = second;
#pragma unroll
            for (int h = 0; h < kHeld; ++h) sum[h] = sum[h] + x[j][h] * second;
        }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) c.write(4 * lane + 128 * h, sum[h]);
}

template <bool kCentred>
void launch_means(const LabelledParams& p, const LabelledPlan& plan, cudaStream_t stream) {
    const int held = kCentred ? rows_held(p.D) : 0;
    const auto kernel = held == 1   ? means_kernel<1>
                        : held == 4 ? means_kernel<4>
                        : held == 8 ? means_kernel<8>
                                    : long_means_kernel<kCentred>;
    launch("means_kernel", kernel, ceil_div(p.B * p.K, kWarps), kThreads, 0, stream, p, plan);
}

// All outputs of `labelled`.
LabelledPlan labelled_plan(const LabelledParams& p);
void launch_labelled(const LabelledParams& p, const LabelledPlan& plan, cudaStream_t stream);

}  // namespace paddle_ext
