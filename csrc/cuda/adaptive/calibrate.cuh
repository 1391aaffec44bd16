// `calibrate` on CUDA: one kernel for all steps, one block per task. The algebra is in
// common/calibrate.h. Eight lanes share a row; the rows stay in shared memory if they fit.
//
// Distances provides (task, i, k, share), the distance of row i to class k in a mixture of two
// metrics, with this share of the second; start(task), which all threads call once and which ends
// with a barrier; and finish(task, sharpness, share), called by all threads after the share and the
// sharpness that fit best have been found and `drawn` is complete. The share grows from 0 to 1 in
// this many `mixtures`, see kStandardError; with 0 mixtures there is one metric.
#pragma once

#include "common/adaptive.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

constexpr int kCalibrateThreads = 640, kCalibrateWarps = kCalibrateThreads / 32;
constexpr int kRowLanes = 8;  // lanes that share a row
constexpr int kRowsTogether = kCalibrateThreads / kRowLanes;

// Exchange between the threads of a block.
struct CalibrateShared {
    double lag[kCalibrateWarps], variance[kCalibrateWarps];
    double sums[kCalibrateWarps];
    double prior;
    float sharpness;
    bool goes_on;
    float drawn[kCalibrateThreads];  // by parts of the rows
};

// A task from the view of one thread. The minimum of each row is subtracted to avoid overflow.
template <typename Distances>
struct CalibrateTask {
    const CalibrateParams& p;
    const Distances& source;
    const float* rows;  // [count, stride] in shared memory, if stride is not 0
    int64_t stride, task, count;
    const int64_t* labels;
    float* normaliser;  // [R]
    float share;

    __device__ int own(int64_t i) const { return int(min(max(labels[i], int64_t(0)), p.K - 1)); }

    // The smallest distance of a row; 0 if it has been subtracted. All lanes of a row call this.
    __device__ float low(int64_t i) const {
        if (stride > 0) return 0.0f;
        float least = Range<float>::kInfinity;
        for (int64_t k = threadIdx.x % kRowLanes; i < count && k < p.K; k += kRowLanes) {
            least = fminf(least, source(task, i, k, share));
        }
        return group_min(least, kRowLanes);
    }

    __device__ float behind(int64_t i, int64_t k, float low) const {
        return stride > 0 ? rows[i * stride + k] : source(task, i, k, share) - low;
    }

    // One warp per row, so that memory is read in order.
    __device__ void stage(float* to) const {
        const int lane = threadIdx.x % 32;
        for (int64_t i = threadIdx.x / 32; i < count; i += kCalibrateWarps) {
            float least = Range<float>::kInfinity;
            for (int64_t k = lane; k < p.K; k += 32) {
                const float value = source(task, i, k, share);
                to[i * stride + k] = value;
                least = fminf(least, value);
            }
            least = -warp_max(-least);
            for (int64_t k = lane; k < p.K; k += 32) to[i * stride + k] -= least;
        }
    }

    // Lag and variance of all rows at a sharpness; each warp writes its part to `shared`.
    __device__ void moments(float f, CalibrateShared& shared) const {
        const float factor = -0.5f * kLog2e<float> * f;
        const int place = threadIdx.x % kRowLanes;
        double lag = 0, variance = 0;
        // All lanes of a warp stay in the loop because they take part in its sums.
        for (int64_t first = 0; first < count; first += kRowsTogether) {
            const int64_t i = first + threadIdx.x / kRowLanes;
            const float least = low(i);
            float sum = 0, mean = 0, second = 0;
#pragma unroll 4
            for (int64_t k = place; i < count && k < p.K; k += kRowLanes) {
                const float d = behind(i, k, least), e = exp2f(factor * d);
                sum += e;
                mean += e * d;
                second += e * d * d;
            }
            sum = group_sum(sum, kRowLanes);
            mean = group_sum(mean, kRowLanes) / sum;
            second = group_sum(second, kRowLanes) / sum;
            if (place != 0 || i >= count) continue;
            lag += double(behind(i, own(i), least) - mean);
            variance += double(fmaxf(second - mean * mean, 0.0f));
        }
        lag = warp_sum(lag);
        variance = warp_sum(variance);
        if (threadIdx.x % 32 == 0) {
            shared.lag[threadIdx.x / 32] = lag;
            shared.variance[threadIdx.x / 32] = variance;
        }
    }

    // The normalisers of the rows; returns this thread's part of the cross-entropy.
    __device__ double normalise(float f) const {
        const float half = 0.5f * kLog2e<float> * f;
        const int place = threadIdx.x % kRowLanes;
        double entropy = 0;
        for (int64_t first = 0; first < count; first += kRowsTogether) {
            const int64_t i = first + threadIdx.x / kRowLanes;
            const float least = low(i);
            float sum = 0;
#pragma unroll 4
            for (int64_t k = place; i < count && k < p.K; k += kRowLanes) {
                sum += exp2f(-half * behind(i, k, least));
            }
            sum = group_sum(sum, kRowLanes);
            if (place != 0 || i >= count) continue;
            normaliser[i] = half * least - log2f(sum);
            entropy += log(double(sum)) + 0.5 * double(f) * double(behind(i, own(i), least));
        }
        return entropy;
    }

    // The share of rows that other classes attract: each warp takes 32 classes and some of the
    // rows.
    __device__ void write_drawn(float f, CalibrateShared& shared) const {
        const float half = 0.5f * kLog2e<float> * f;
        const int64_t tiles = ceil_div(p.K, int64_t(32));
        const int64_t parts = max(kCalibrateWarps / tiles, int64_t(1));
        float* const drawn = static_cast<float*>(p.drawn) + task * p.K;
        for (int64_t item = threadIdx.x / 32; item < tiles * parts; item += kCalibrateWarps) {
            const int64_t k = item % tiles * 32 + threadIdx.x % 32, part = item / tiles;
            if (k >= p.K) continue;
            float sum = 0;
            for (int64_t i = part; i < count; i += parts) {
                sum += k == own(i) ? 0.0f : exp2f(normaliser[i] - half * behind(i, k, 0.0f));
            }
            (parts > 1 ? shared.drawn[part * p.K + k] : drawn[k]) = sum;
        }
        if (parts == 1) return;
        __syncthreads();
        for (int64_t k = threadIdx.x; k < p.K; k += kCalibrateThreads) {
            float sum = 0;
            for (int64_t part = 0; part < parts; ++part) sum += shared.drawn[part * p.K + k];
            drawn[k] = sum;
        }
    }
};

// The sharpness for the distances of a task, starting from bracket.at; all threads get it. Only the
// first thread's bracket counts.
template <typename Distances>
__device__ float find_sharpness(const CalibrateTask<Distances>& t, CalibrateShared& shared,
                                Bracket& bracket) {
    if (threadIdx.x == 0) shared.sharpness = float(bracket.sharpness());
    __syncthreads();
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        t.moments(shared.sharpness, shared);
        __syncthreads();
        if (threadIdx.x < 32) {
            const bool there = threadIdx.x < kCalibrateWarps;
            const double lag = warp_sum(there ? shared.lag[threadIdx.x] : 0.0);
            const double variance = warp_sum(there ? shared.variance[threadIdx.x] : 0.0);
            if (threadIdx.x == 0) {
                shared.goes_on = bracket.step(lag, variance);
                shared.sharpness = float(bracket.sharpness());
                shared.prior = bracket.prior();
            }
        }
        __syncthreads();
        if (!shared.goes_on) break;
    }
    return shared.sharpness;
}

template <typename Distances>
__global__ void __launch_bounds__(kCalibrateThreads, 2)
    calibrate_kernel(CalibrateParams p, Distances source, int64_t stride, int mixtures) {
    extern __shared__ float rows[];
    __shared__ CalibrateShared shared;
    const int64_t task = blockIdx.x;
    source.start(task);
    CalibrateTask<Distances> t{p,
                               source,
                               rows,
                               stride,
                               task,
                               min(max(p.count[task], int64_t(0)), p.R),
                               p.labels + task * p.R,
                               static_cast<float*>(p.workspace) + task * p.R,
                               0.0f};
    double least = 0;
    float best = 0, sharpness = 0;
    for (int mixture = 0; mixture <= mixtures; ++mixture) {
        t.share = mixtures > 0 ? float(mixture) / float(mixtures) : 0.0f;
        if (stride > 0) t.stage(rows);
        Bracket bracket(p.centre, p.spread);
        if (mixture > 0) bracket.at = log(double(sharpness));
        const float found = find_sharpness(t, shared, bracket);
        const double objective = block_sum(t.normalise(found), shared.sums) + shared.prior;
        if (mixture > 0 && !(objective < least + kStandardError)) break;
        least = mixture > 0 ? fmin(least, objective) : objective;
        best = t.share, sharpness = found;
    }
    if (t.share != best) {  // back to the best mixture
        __syncthreads();
        t.share = best;
        if (stride > 0) t.stage(rows);
        __syncthreads();
        t.normalise(sharpness);
        __syncthreads();
    }
    t.write_drawn(sharpness, shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        static_cast<float*>(p.sharpness)[task] = sharpness;
        static_cast<float*>(p.objective)[task] = float(least);
    }
    source.finish(task, sharpness, best);
}

inline int64_t calibrate_workspace_bytes(const CalibrateParams& p) {
    return p.B * p.R * int64_t(sizeof(float));
}

template <typename Distances>
void launch_calibrate(const CalibrateParams& p, const Distances& source, int mixtures, int device,
                      cudaStream_t stream) {
    constexpr int64_t kOther = 8192;  // bytes, more than the kernel's other shared memory
    // Neighbouring rows begin in different banks.
    const int64_t stride = round_up(p.K, int64_t(32)) + kRowLanes;
    const int64_t bytes = p.R * stride * int64_t(sizeof(float));
    const bool staged =
        bytes + kOther <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    const auto kernel = calibrate_kernel<Distances>;
    allow_all_shared(kernel);
    launch("calibrate_kernel", kernel, p.B, kCalibrateThreads, staged ? bytes : 0, stream, p,
           source, staged ? stride : 0, mixtures);
}

}  // namespace paddle_ext
