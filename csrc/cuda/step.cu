// The late step of `adaptive` on CUDA: one block a task. First a thread for each class sums over the
// queries, then a warp takes a query at a time. The algebra is in common/step.h.

#include "cuda/step.h"

#include "common/check.h"
#include "common/device.cuh"
#include "common/math.h"
#include "common/reduce.cuh"
#include "common/step.h"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

struct Step {
    const float *given, *cross, *inner, *own, *extra;  // [Q, K], own [Q], extra may be null
    const float *shots, *squares, *constant, *total;   // [K]
    float sharpness, prior, weight, temper;
    float *square, *mass;  // [K] in the workspace

    __device__ Step(const StepParams& p, int64_t task) {
        const int64_t at = task * p.Q * p.K, shared = p.shared ? 0 : task;
        given = static_cast<const float*>(p.given) + at;
        cross = static_cast<const float*>(p.cross) + at;
        inner = static_cast<const float*>(p.inner) + at;
        own = static_cast<const float*>(p.own) + task * p.Q;
        extra = p.extra == nullptr ? nullptr : static_cast<const float*>(p.extra) + at;
        shots = static_cast<const float*>(p.shots) + shared * p.K;
        squares = static_cast<const float*>(p.squares) + shared * p.K;
        constant = static_cast<const float*>(p.constant) + task * p.K;
        total = static_cast<const float*>(p.total) + task * p.K;
        sharpness = static_cast<const float*>(p.sharpness)[task];
        prior = static_cast<const float*>(p.prior)[task];
        weight = float(p.weight);
        temper = float(p.temper);
        square = static_cast<float*>(p.workspace) + task * 2 * p.K;
        mass = square + p.K;
    }

    __device__ float logit(int64_t at, int64_t q, int64_t k) const {
        const float u = given[at], w = query_weight(u, trust_of(total[k], prior));
        float z = sharpness *
                  half_distance(w, shots[k] * cross[at], inner[at], own[q], square[k], mass[k]);
        if (extra != nullptr) z += extra[at];
        return temper * (z + constant[k] + logf(fmaxf(total[k] - weight * u, prior)));
    }
};

__global__ void __launch_bounds__(kThreads) step_kernel(StepParams p) {
    __shared__ float parts[2][kWarps][32];
    const int64_t task = blockIdx.x, Q = p.Q, K = p.K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Step s(p, task);
    // A tile of 32 classes at a time, a share of the queries for each warp.
    for (int64_t first = 0; first < K; first += 32) {
        const int64_t k = first + lane;
        const float trust = k < K ? trust_of(s.total[k], s.prior) : 0.0f;
        float square = 0, mass = 0;
        for (int64_t q = warp; k < K && q < Q; q += kWarps) {
            const float w = query_weight(s.given[q * K + k], trust);
            square += w * (2 * s.shots[k] * s.cross[q * K + k] + s.inner[q * K + k]);
            mass += w;
        }
        parts[0][warp][lane] = square;
        parts[1][warp][lane] = mass;
        __syncthreads();
        if (warp == 0 && k < K) {
            square = s.shots[k] * s.shots[k] * s.squares[k];
            mass = s.shots[k];
            for (int other = 0; other < kWarps; ++other) {
                square += parts[0][other][lane];
                mass += parts[1][other][lane];
            }
            s.square[k] = square;
            s.mass[k] = mass;
        }
        __syncthreads();
    }
    float* const out = static_cast<float*>(p.probabilities) + task * Q * K;
    for (int64_t q = warp; q < Q; q += kWarps) {
        float most = Range<float>::kMinusInfinity, sum = 0, best = -1.0f;
        int label = 0;
        for (int64_t k = lane; k < K; k += 32) {
            const float z = s.logit(q * K + k, q, k);
            out[q * K + k] = z;
            most = fmaxf(most, z);
        }
        most = warp_max(most);
        for (int64_t k = lane; k < K; k += 32) {
            const float e = expf(out[q * K + k] - most);
            out[q * K + k] = e;
            sum += e;
        }
        const float share = 1.0f / warp_sum(sum);
        for (int64_t k = lane; k < K; k += 32) {
            const float u = out[q * K + k] * share;
            out[q * K + k] = u;
            if (u > best) {
                best = u;
                label = int(k);
            }
        }
        label = warp_argmax(best, label);
        if (lane == 0) p.labels[task * Q + q] = label;
    }
}

}  // namespace

int64_t step_cuda_workspace(const StepParams& p, int) {
    return p.B * 2 * p.K * int64_t(sizeof(float));
}

void step_cuda(const StepParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "given on CUDA must be float32 for the native code");
    require(p.K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", p.K);
    require_workspace(p.workspace_bytes, step_cuda_workspace(p, device));
    const DeviceGuard guard(device);
    step_kernel<<<grid_size(p.B), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
    check_launch("step_kernel");
}

}  // namespace paddle_ext
