// Rows of groups on CUDA, by one warp each: see common/groups.h.
#pragma once

#include "common/groups.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

// The measure of a group; 1 for all classes without one.
class Measure {
  public:
    __device__ Measure(const double* measures, int64_t group, int64_t K)
        : m_(measures == nullptr ? nullptr : measures + group * K), K_(float(K)) {}

    __device__ double operator[](int64_t k) const { return m_ == nullptr ? 1.0 : m_[k]; }

    __device__ float log(int64_t k) const { return m_ == nullptr ? 0.0f : logf(float(m_[k])); }

    // K / m, and 0 for an impossible class.
    __device__ float inverse(int64_t k) const {
        if (m_ == nullptr) return K_;
        return m_[k] > 0 ? float(double(K_) / m_[k]) : 0.0f;
    }

  private:
    const double* m_;
    float K_;
};

// The largest logit of a class that is possible.
__device__ inline float most_possible(const float* logits, const Measure& measure, int64_t K) {
    float most = -INFINITY;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
        if (measure[k] > 0) most = fmaxf(most, logits[k]);
    }
    return warp_max(most);
}

// Turns logarithms, the largest of which is `most`, into probabilities.
__device__ inline void normalise_logs(float* row, float most, int64_t K) {
    float sum = 0;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) sum += row[k] = expf(row[k] - most);
    const float unit = 1.0f / warp_sum(sum);
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) row[k] *= unit;
}

// The probabilities t of a row alone.
__device__ inline void write_alone(const float* logits, const Measure& measure, int64_t K,
                                   float* t) {
    const float most = most_possible(logits, measure, K);
    float largest = -INFINITY;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
        t[k] = measure[k] > 0 ? (logits[k] - most) + measure.log(k) : -INFINITY;
        largest = fmaxf(largest, t[k]);
    }
    normalise_logs(t, warp_max(largest), K);
}

// ln sum exp( l + e ) of a row, relative to `most`, its largest possible logit; e of any logarithms of
// the possible classes, or those of the measure without them.
__device__ inline double log_evidence(const float* logits, const Measure& measure, const float* e,
                                      int64_t K, float& most) {
    most = most_possible(logits, measure, K);
    const auto log_of = [&](int64_t k) {
        if (!(measure[k] > 0)) return -INFINITY;
        return (logits[k] - most) + (e == nullptr ? measure.log(k) : e[k]);
    };
    float largest = -INFINITY, sum = 0;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) largest = fmaxf(largest, log_of(k));
    largest = warp_max(largest);
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) sum += expf(log_of(k) - largest);
    return double(largest) + log(double(warp_sum(sum)));
}

// The mean log proportions e [K] of counts times `share` under a prior, by one block; returns the part
// of the bound that is independent of the rows. All threads see e.
__device__ inline double dual_of_group(double concentration, const Measure& measure,
                                       const double* counts, double share, double total, int64_t K,
                                       float* e, double* scratch) {
    const double whole = polygamma(total + double(K) * concentration).digamma;
    double bound = 0;
    for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
        const double m = measure[k], count = share * counts[k];
        const double dual = m > 0 ? polygamma(count + concentration * m).digamma - whole : 0.0;
        e[k] = float(dual);
        bound += class_bound(count, concentration, m, dual);
    }
    bound = block_sum(bound, scratch) + whole_bound(concentration, total, double(K));
    __syncthreads();
    return bound;
}

}  // namespace paddle_ext
