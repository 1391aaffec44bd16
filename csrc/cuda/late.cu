// The late step of `adaptive` for rows of one large task.

#include "common/check.h"
#include "common/large.h"
#include "common/step.h"
#include "cuda/assign_rows.cuh"

namespace paddle_ext {

namespace {

// Data of all rows; see LateParams.
struct Late {
    const float *bias, *square, *mass, *constant, *total, *prior, *added;
    float slope, sharper, share, weight, trust, temper;

    __device__ explicit Late(const LateParams& p)
        : bias(static_cast<const float*>(p.bias)), square(static_cast<const float*>(p.square)),
          mass(static_cast<const float*>(p.mass)), constant(static_cast<const float*>(p.constant)),
          total(static_cast<const float*>(p.total)), prior(static_cast<const float*>(p.prior)),
          added(static_cast<const float*>(p.added)), slope(float(p.slope)),
          sharper(float(p.sharper)), share(float(p.share)), weight(float(p.weight)),
          trust(float(p.trust)), temper(float(p.temper)) {}

    // The further logit of a class, at [row, k] of `added`.
    __device__ float more(int64_t at) const { return added == nullptr ? 0.0f : added[at]; }

    // The logit of a class before the step.
    __device__ float before(int64_t k, float cross, float more) const {
        return fmaf(slope, cross, bias[k]) + more;
    }

    // The new logit, from the previous probability u and the product of the row with the sum.
    __device__ float after(int64_t k, float u, float all, float own, float more) const {
        const float w = query_weight(u, trust);
        const float z = sharper * half_distance(w, 0.0f, all, own, square[k], mass[k]);
        const float left = logf(fmaxf(total[k] - weight * u, prior[k]));
        return temper * (z + constant[k] + share * more + left);
    }
};

// The late step, one warp per row; its products with the prototypes stay in registers.
template <int kVectors, int kWidth>
__global__ void __launch_bounds__(kThreads) late_kernel(LateParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, K = p.K;
    if (row >= p.N) return;
    const Late late(p);
    float* const cross = static_cast<float*>(p.products) + row * 2 * K;
    const float own = static_cast<const float*>(p.own)[row];
    float value[kVectors][kWidth], most = kNothing, sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        const int k = class_of<kWidth>(i);
        if (k >= K) continue;
        const Some<kWidth> x = load<kWidth>(cross + k);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            value[i][j] = late.before(k + j, x.x[j], late.more(row * K + k + j));
            most = fmaxf(most, value[i][j]);
        }
    }
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        if (class_of<kWidth>(i) >= K) continue;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            value[i][j] = expf(value[i][j] - most);
            sum += value[i][j];
        }
    }
    const float share = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        const int k = class_of<kWidth>(i);
        if (k >= K) continue;
        const Some<kWidth> all = load<kWidth>(cross + K + k);
        Some<kWidth> z;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float more = late.more(row * K + k + j);
            z.x[j] = late.after(k + j, value[i][j] * share, all.x[j], own, more);
        }
        *reinterpret_cast<Some<kWidth>*>(cross + k) = z;
    }
}

// The same for any number of classes.
__global__ void __launch_bounds__(kThreads) late_of_many_kernel(LateParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, K = p.K;
    if (row >= p.N) return;
    const int lane = threadIdx.x % 32;
    const Late late(p);
    float* const cross = static_cast<float*>(p.products) + row * 2 * K;
    const float own = static_cast<const float*>(p.own)[row];
    const auto logit = [&](int64_t k) { return late.before(k, cross[k], late.more(row * K + k)); };
    float most = kNothing, sum = 0;
    for (int64_t k = lane; k < K; k += 32) most = fmaxf(most, logit(k));
    most = warp_max(most);
    for (int64_t k = lane; k < K; k += 32) sum += expf(logit(k) - most);
    const float share = 1.0f / warp_sum(sum);
    for (int64_t k = lane; k < K; k += 32) {
        const float u = expf(logit(k) - most) * share;
        cross[k] = late.after(k, u, cross[K + k], own, late.more(row * K + k));
    }
}

}  // namespace

void run_cuda(const LateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "products on CUDA must be float32 for the native code");
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    if (p.K > kTile) {
        late_of_many_kernel<<<row_blocks(p.N), kThreads, 0, on>>>(p);
    } else {
        with_shape(p.K, [&](auto shape) {
            using S = decltype(shape);
            late_kernel<S::kVectors, S::kWidth><<<row_blocks(p.N), kThreads, 0, on>>>(p);
        });
    }
    check_launch("late_kernel");
}

}  // namespace paddle_ext
