// `adapt` on CUDA for more classes than the registers of a warp hold; adapt.cu handles fewer. One
// block per task, two passes over the likelihoods per iteration: one warp per row, then one thread
// per class.

#include "common/check.h"
#include "cuda/adapt.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
constexpr int kTerms = 256;        // longer float sums are split
constexpr int64_t kNearby = 8192;  // numbers of a row or a column that fit in shared memory

// The likelihoods are stored in the probabilities' array, the counts in the proportions' array, the
// rest in the workspace.
struct ManyTask {
    const AdaptParams& p;
    Logits logits;
    float* likelihood;  // [Q, K]
    float* counts;      // [K]
    float* share;       // [Q] 1 / s; 0 for a row that is recomputed from its logits ...
    float* row_log;     // [Q] ... with this normaliser
    float* offset;      // [Q] largest logit of a row
    float* dual;        // [K] minus its shift, ...
    float* g;           // [K] ... and its exponential
    float* before;      // [K]
    float* best;        // [K] dual under the best measure

    __device__ ManyTask(const AdaptParams& p, int64_t task)
        : p(p), logits(p, task),
          likelihood(static_cast<float*>(p.probabilities) + task * p.Q * p.K),
          counts(static_cast<float*>(p.proportions) + task * p.K),
          share(static_cast<float*>(p.workspace) + task * numbers(p)), row_log(share + p.Q),
          offset(row_log + p.Q), dual(offset + p.Q), g(dual + p.K), before(g + p.K),
          best(before + p.K) {
        extern __shared__ float nearby[];  // the most-read data of an iteration
        if (p.Q <= kNearby) share = nearby;
        if (p.K <= kNearby) g = nearby + (p.Q <= kNearby ? p.Q : 0);
    }

    // In the workspace.
    static __host__ __device__ int64_t numbers(const AdaptParams& p) { return 3 * p.Q + 4 * p.K; }

    __device__ float shifted(int64_t q, int64_t k) const {
        return logits(q, k) - offset[q] + dual[k];
    }

    // Computes share and row_log of each row; returns the warp's sum of the rows' normalisers.
    __device__ double normalise_rows() {
        const int lane = threadIdx.x % 32;
        double total = 0;
        for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
            const float* const a = likelihood + q * p.K;
            float sum = 0;
#pragma unroll 8
            for (int64_t k = lane; k < p.K; k += 32) sum += a[k] * g[k];
            sum = warp_sum(sum);
            const bool faint = !(sum > kFaint);
            double log_sum = log(double(sum));
            if (faint) {
                float most = Range<float>::kMinusInfinity;
                for (int64_t k = lane; k < p.K; k += 32) most = fmaxf(most, shifted(q, k));
                most = warp_max(most);
                float again = 0;
                for (int64_t k = lane; k < p.K; k += 32) again += expf(shifted(q, k) - most);
                log_sum = double(most) + log(double(warp_sum(again)));
            }
            if (lane == 0) {
                share[q] = faint ? 0.0f : 1.0f / sum;
                row_log[q] = float(log_sum);
            }
            total += double(offset[q]) + log_sum;
        }
        return total;
    }

    __device__ float probability(int64_t q, int64_t k) const {
        if (share[q] > 0) return likelihood[q * p.K + k] * g[k] * share[q];
        return expf(shifted(q, k) - row_log[q]);
    }

    // Counts of all classes; with kWrite the probabilities overwrite the likelihoods.
    template <bool kWrite>
    __device__ void count_classes() {
        for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
            double sum = 0;
            for (int64_t first = 0; first < p.Q; first += kTerms) {
                const int64_t end = min(p.Q, first + kTerms);
                float part = 0;
#pragma unroll 8
                for (int64_t q = first; q < end; ++q) {
                    const float u = probability(q, k);
                    part += u;
                    if constexpr (kWrite) likelihood[q * p.K + k] = u;
                }
                sum += double(part);
            }
            counts[k] = float(p.weight * sum);
        }
    }

    __device__ void write_labels() {
        const int lane = threadIdx.x % 32;
        for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
            float best = -1.0f;
            int label = 0;
            for (int64_t k = lane; k < p.K; k += 32) {
                const float u = likelihood[q * p.K + k];
                if (u > best) {
                    best = u;
                    label = int(k);
                }
            }
            label = warp_argmax(best, label);
            if (lane == 0) p.labels[blockIdx.x * p.Q + q] = label;
        }
    }
};

template <bool kGiven>
__global__ void __launch_bounds__(kThreads) adapt_many_kernel(AdaptParams p) {
    __shared__ Update<float> scratch[kWarps];
    __shared__ double sums[kWarps];
    ManyTask t(p, blockIdx.x);
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
        const float most = t.logits.likelihood(q, t.likelihood + q * p.K);
        if (threadIdx.x % 32 == 0) t.offset[q] = most;
    }

    const auto set = [&](int64_t k, float e) {
        t.dual[k] = e;
        t.g[k] = expf(e);
    };
    const auto normalise = [&] {
        const double normalisers = t.normalise_rows();
        __syncthreads();
        t.count_classes<false>();
        return block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, sums);
    };
    const auto iterate = [&](Loop& loop, const Measure<kGiven>& measure) {
        t.normalise_rows();
        __syncthreads();
        t.count_classes<false>();
        update_prior(loop, p, measure, t.counts, t.before, set, scratch);
        __syncthreads();
    };
    const Loop loop = learn<kGiven>(p, blockIdx.x, t.counts, t.before, t.dual, t.best, set, iterate,
                                    normalise, sums);

    double normalisers = t.normalise_rows();
    __syncthreads();
    t.count_classes<true>();
    normalisers = block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, sums);
    t.write_labels();
    write_task<kGiven>(p, blockIdx.x, loop, normalisers, t.counts, t.dual, sums);
}

}  // namespace

int64_t adapt_many_workspace(const AdaptParams& p) {
    return p.B * ManyTask::numbers(p) * int64_t(sizeof(float));
}

void launch_adapt_many(const AdaptParams& p, cudaStream_t stream) {
    require_workspace(p.workspace_bytes, adapt_many_workspace(p));
    const int64_t numbers = (p.Q <= kNearby ? p.Q : 0) + (p.K <= kNearby ? p.K : 0);
    const auto kernel = p.measures == nullptr ? adapt_many_kernel<false> : adapt_many_kernel<true>;
    allow_all_shared(kernel);
    kernel<<<grid_size(p.B), kThreads, size_t(numbers) * sizeof(float), stream>>>(p);
    check_launch("adapt_many_kernel");
}

}  // namespace paddle_ext
