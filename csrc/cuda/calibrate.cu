// `calibrate` on CUDA: one kernel for all steps, one block a task. The algebra is in
// common/calibrate.h. A warp takes a row at a time.

#include "cuda/calibrate.h"

#include "common/calibrate.h"
#include "common/check.h"
#include "common/device.cuh"
#include "common/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

struct Moments {
    double lag, variance, entropy;
};

// What a row adds, in all lanes.
__device__ Moments row_moments(const float* d, int64_t K, float own, float f) {
    const int lane = threadIdx.x % 32;
    float low = Range<float>::kInfinity;
    for (int64_t k = lane; k < K; k += 32) low = fminf(low, d[k]);
    low = -warp_max(-low);
    float sum = 0, first = 0, second = 0;
    for (int64_t k = lane; k < K; k += 32) {
        const float behind = d[k] - low;
        const float e = expf(-0.5f * f * behind);
        sum += e;
        first += e * behind;
        second += e * behind * behind;
    }
    sum = warp_sum(sum);
    const double mean = double(warp_sum(first)) / double(sum);
    const double square = double(warp_sum(second)) / double(sum);
    const double behind = double(own) - double(low);
    return {behind - mean, fmax(square - mean * mean, 0.0),
            log(double(sum)) + 0.5 * double(f) * behind};
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

__global__ void __launch_bounds__(kThreads) calibrate_kernel(CalibrateParams p) {
    __shared__ Moments scratch[kWarps];
    const int64_t task = blockIdx.x, K = p.K;
    const float* const d = static_cast<const float*>(p.distances) + task * p.R * K;
    const int64_t* const labels = p.labels + task * p.R;
    const int64_t count = min(max(p.count[task], int64_t(0)), p.R);
    Bracket bracket(p.centre, p.spread);
    const auto moments = [&] {
        Moments all{0, 0, 0};
        const float f = float(bracket.sharpness());
        for (int64_t i = threadIdx.x / 32; i < count; i += kWarps) {
            const int64_t own = min(max(labels[i], int64_t(0)), K - 1);
            const Moments row = row_moments(d + i * K, K, d[i * K + own], f);
            all.lag += row.lag;
            all.variance += row.variance;
            all.entropy += row.entropy;
        }
        return block_sum(all, scratch);
    };
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        const Moments all = moments();
        if (!bracket.step(all.lag, all.variance)) break;
    }
    const double entropy = moments().entropy;
    if (threadIdx.x != 0) return;
    static_cast<float*>(p.sharpness)[task] = float(bracket.sharpness());
    static_cast<float*>(p.objective)[task] = float(entropy + bracket.prior());
}

}  // namespace

int64_t calibrate_cuda_workspace(const CalibrateParams&, int) { return 0; }

void calibrate_cuda(const CalibrateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    const DeviceGuard guard(device);
    calibrate_kernel<<<grid_size(p.B), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
    check_launch("calibrate_kernel");
}

}  // namespace paddle_ext
