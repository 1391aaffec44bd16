#include "common/check.h"
#include "common/params.h"
#include "cuda/calibrate.cuh"

namespace paddle_ext {

namespace {

struct GivenDistances {
    const float* distances;  // [B, R, K]
    int64_t R, K;

    __device__ void start(int64_t) const {}

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float) const {
        return distances[(task * R + i) * K + k];
    }

    __device__ void finish(int64_t, float, float) const {}
};

}  // namespace

int64_t workspace_cuda(const CalibrateParams& p, int) { return calibrate_workspace_bytes(p); }

void run_cuda(const CalibrateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    require_workspace(p.workspace_bytes, calibrate_workspace_bytes(p));
    const DeviceGuard guard(device);
    const GivenDistances source{static_cast<const float*>(p.distances), p.R, p.K};
    launch_calibrate(p, source, 0, device, static_cast<cudaStream_t>(stream));
}

}  // namespace paddle_ext
