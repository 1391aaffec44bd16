// `calibrate` on CUDA: one kernel for all steps, one block a task. The algebra is in
// common/calibrate.h. A warp takes a row at a time; the rows stay in shared memory if they fit.

#include "cuda/calibrate.h"

#include <type_traits>

#include "common/calibrate.h"
#include "common/check.h"
#include "common/device.cuh"
#include "common/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

struct Moments {
    double lag, variance, entropy;
};

// What a row adds, in all lanes; `own` is less the row's minimum. The entropy is wanted once.
template <bool kEntropy>
__device__ Moments row_moments(const float* d, int64_t K, float own, float low, float f) {
    float sum = 0, first = 0, second = 0;
    const float factor = -0.5f * kLog2e<float> * f;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
        const float behind = d[k] - low, e = exp2f(factor * behind);
        sum += e;
        first += e * behind;
        second += e * behind * behind;
    }
    sum = warp_sum(sum);
    if constexpr (kEntropy) return {0, 0, log(double(sum)) + 0.5 * double(f) * double(own)};
    const float share = 1.0f / sum, mean = warp_sum(first) * share;
    return {double(own - mean), double(fmaxf(warp_sum(second) * share - mean * mean, 0.0f)), 0};
}

__device__ float row_minimum(const float* d, int64_t K) {
    float low = Range<float>::kInfinity;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) low = fminf(low, d[k]);
    return -warp_max(-low);
}

// Sums over the warps, in a fixed order; every thread gets them.
__device__ Moments block_sum(const Moments& own, Moments* scratch) {
    __syncthreads();  // the sums of the step before have been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
    __syncthreads();
    Moments all{0, 0, 0};
    for (int warp = 0; warp < kWarps; ++warp) {
        all.lag += scratch[warp].lag;
        all.variance += scratch[warp].variance;
        all.entropy += scratch[warp].entropy;
    }
    return all;
}

// What the classes draw of rows of other classes. First a warp takes a row at a time for its
// normaliser, then 32 classes at a time, a share of the rows for each warp.
__device__ void write_drawn(const CalibrateParams& p, float f, const float* rows, bool staged,
                            int64_t count) {
    __shared__ float parts[kWarps][33];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t task = blockIdx.x, K = p.K;
    const int64_t* const labels = p.labels + task * p.R;
    float* const normaliser = static_cast<float*>(p.workspace) + task * p.R;
    const float half = 0.5f * kLog2e<float> * f;
    for (int64_t i = warp; i < count; i += kWarps) {
        const float low = staged ? 0.0f : row_minimum(rows + i * K, K);
        float sum = 0;
        for (int64_t k = lane; k < K; k += 32) sum += exp2f(half * (low - rows[i * K + k]));
        sum = warp_sum(sum);
        if (lane == 0) normaliser[i] = half * low - log2f(sum);
    }
    __syncthreads();
    for (int64_t first = 0; first < K; first += 32) {
        const int64_t k = first + lane;
        float sum = 0;
        for (int64_t i = warp; k < K && i < count; i += kWarps) {
            const int64_t own = min(max(labels[i], int64_t(0)), K - 1);
            sum += k == own ? 0.0f : exp2f(normaliser[i] - half * rows[i * K + k]);
        }
        parts[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && k < K) {
            sum = 0;
            for (int other = 0; other < kWarps; ++other) sum += parts[other][lane];
            static_cast<float*>(p.drawn)[task * K + k] = sum;
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(kThreads) calibrate_kernel(CalibrateParams p, bool staged) {
    extern __shared__ float rows[];  // [R, K] less their minimum, if staged
    __shared__ Moments scratch[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t task = blockIdx.x, K = p.K;
    const float* const given = static_cast<const float*>(p.distances) + task * p.R * K;
    const int64_t* const labels = p.labels + task * p.R;
    const int64_t count = min(max(p.count[task], int64_t(0)), p.R);
    // Each warp reads only rows that it has staged itself.
    for (int64_t i = warp; staged && i < count; i += kWarps) {
        const float low = row_minimum(given + i * K, K);
        for (int64_t k = lane; k < K; k += 32) rows[i * K + k] = given[i * K + k] - low;
    }
    __syncwarp();
    Bracket bracket(p.centre, p.spread);
    const auto moments = [&](auto entropy) {
        Moments all{0, 0, 0};
        const float f = float(bracket.sharpness());
        for (int64_t i = warp; i < count; i += kWarps) {
            const float* const d = (staged ? rows : given) + i * K;
            const float low = staged ? 0.0f : row_minimum(d, K);
            const int64_t own = min(max(labels[i], int64_t(0)), K - 1);
            const Moments row = row_moments<entropy.value>(d, K, d[own] - low, low, f);
            all.lag += row.lag;
            all.variance += row.variance;
            all.entropy += row.entropy;
        }
        return block_sum(all, scratch);
    };
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        const Moments all = moments(std::false_type{});
        if (!bracket.step(all.lag, all.variance)) break;
    }
    const double entropy = moments(std::true_type{}).entropy;
    write_drawn(p, float(bracket.sharpness()), staged ? rows : given, staged, count);
    if (threadIdx.x != 0) return;
    static_cast<float*>(p.sharpness)[task] = float(bracket.sharpness());
    static_cast<float*>(p.objective)[task] = float(entropy + bracket.prior());
}

}  // namespace

int64_t calibrate_cuda_workspace(const CalibrateParams& p, int) {
    return p.B * p.R * int64_t(sizeof(float));
}

void calibrate_cuda(const CalibrateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    require_workspace(p.workspace_bytes, calibrate_cuda_workspace(p, device));
    const DeviceGuard guard(device);
    constexpr int64_t kOther = 8192;  // bytes, more than what the kernel has besides
    const int64_t bytes = p.R * p.K * int64_t(sizeof(float));
    const bool staged =
        bytes + kOther <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    allow_all_shared(calibrate_kernel);
    calibrate_kernel<<<grid_size(p.B), kThreads, staged ? size_t(bytes) : 0,
                       static_cast<cudaStream_t>(stream)>>>(p, staged);
    check_launch("calibrate_kernel");
}

}  // namespace paddle_ext
