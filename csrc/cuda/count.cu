// Counts of classes from likelihoods of rows that are kept, in half precision.

#include "common/check.h"
#include "common/large.h"
#include "common/prepare.h"
#include "cuda/assign_rows.cuh"

namespace paddle_ext {

namespace {

__global__ void __launch_bounds__(kThreads) row_sums_kernel(CountParams p, float* shares) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const __half* const a = static_cast<const __half*>(p.likelihood) + row * p.K;
    const float* const g = static_cast<const float*>(p.weights) + row / p.N * p.K;
    float sum = 0;
    for (int64_t k = threadIdx.x % 32; k < p.K; k += 32) sum += to_float(a[k]) * g[k];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shares[row] = sum;
}

template <int kVectors, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    count_kernel(CountParams p, RowsWorkspace all, const float* sums) {
    constexpr int kLine = 32 * kVectors * kWidth;
    __shared__ float staged[kWarps * kLine];
    const int64_t tiles = ceil_div(p.K, int64_t(kTile));
    const Place at(p.N, all.rows, tiles);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t end = min(p.N, at.first_row + all.rows);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    const float* const weights =
        static_cast<const float*>(p.weights) + at.task * p.K + at.first_class;
    float held[kVectors][kWidth] = {};
    int faint = 0;
    for (int64_t q = at.first_row + warp; q < end; q += kWarps) {
        const int64_t row = at.task * p.N + q;
        const __half* const a =
            static_cast<const __half*>(p.likelihood) + row * p.K + at.first_class;
        float value[kVectors][kWidth], sum = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            Some<kWidth, __half> likelihood{};
            Some<kWidth> weight{};
            if (k < classes) {
                likelihood = load<kWidth>(a + k);
                weight = load<kWidth>(weights + k);
            }
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                value[i][j] = to_float(likelihood.x[j]) * weight.x[j];
                sum += value[i][j];
            }
        }
        sum = sums == nullptr ? warp_sum(sum) : sums[row];
        faint += sum < float(kFaintRow);
        const float share = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) held[i][j] = fmaf(value[i][j], share, held[i][j]);
        }
    }
    const int64_t part = at.task * all.blocks + at.block;
    write_sums(held, staged, all.parts + part * p.K + at.first_class, classes);
    if (at.first_class != 0) return;
    __shared__ int counts[kWarps];
    if (lane == 0) counts[warp] = faint;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int other = 1; other < kWarps; ++other) faint += counts[other];
    all.log_parts[part] = double(faint);
}

}  // namespace

int64_t workspace_cuda(const CountParams& p, int) { return RowsWorkspace::bytes(p.B, p.N, p.K); }

void run_cuda(const CountParams& p, int device, void* on) {
    require(p.dtype == DType::kFloat16, "likelihood on CUDA must be float16");
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    const DeviceGuard guard(device);
    const auto stream = static_cast<cudaStream_t>(on);
    Arena arena(p.workspace);
    const RowsWorkspace all(arena, p.B, p.N, p.K);
    float* sums = nullptr;
    if (p.K > kTile) {
        sums = static_cast<float*>(all.stats);
        row_sums_kernel<<<row_blocks(p.B * p.N), kThreads, 0, stream>>>(p, sums);
        check_launch("row_sums_kernel");
    }
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        count_kernel<S::kVectors, S::kWidth>
            <<<all.grid(p.B, p.K), kThreads, 0, stream>>>(p, all, sums);
    });
    check_launch("count_kernel");
    add_parts(all, p.B, p.K, p.held, stream);
    add_logs(all.log_parts, p.B, all.blocks, p.faint, stream);
}

}  // namespace paddle_ext
