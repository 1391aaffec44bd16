// `sets` on CUDA: one block per group, one thread per set.

#include "common/groups.h"
#include "common/workspace.h"
#include "cuda/adaptive/groups.cuh"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = kSets, kWarps = kThreads / 32;
constexpr int kLaneBits = 5;  // of a set that are those of a lane; the others are of a round
constexpr int kRounds = kSets >> kLaneBits;
constexpr int kAtOnce = 4;  // rows that are multiplied before a logarithm may be needed

struct SetsPlan {
    SetsParams p;
    Arena arena{p.workspace};
    float* dual = arena.take<float>(p.B * p.K);  // mean log proportions
};

// The class with the largest count after `last`, of equal ones the smaller; the last one if none has.
// By one warp.
__device__ int next_class(const double* counts, int64_t K, int last) {
    const float before = last < 0 ? INFINITY : float(counts[last]);
    float best = -1.0f;
    int label = int(K) - 1;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
        const float count = float(counts[k]);
        const bool left = count < before || (count == before && k > last);
        if (left && count > best) {
            best = count;
            label = int(k);
        }
    }
    return warp_argmax(best, label);
}

// The ratios of a row, in all lanes.
struct Ratios {
    float x[kSetClasses];

    __device__ Ratios(const SetsParams& p, int64_t row) {
        const float4* const from =
            reinterpret_cast<const float4*>(floats(p.ratios, row * kSetClasses));
        *reinterpret_cast<float4*>(x) = from[0];
        *reinterpret_cast<float4*>(x + 4) = from[1];
    }

    // Of the classes of a set; `first` is the number of its lowest bit.
    __device__ float sum(unsigned set, int first = 0, int end = kSetClasses) const {
        float found = 0;
#pragma unroll
        for (int i = 0; i < kSetClasses; ++i) {
            if (i >= first && i < end) found += set >> (i - first) & 1 ? x[i] : 0.0f;
        }
        return found;
    }
};

struct Group {
    const SetsParams& p;
    int64_t number, K = p.K, start = p.starts[number], n = p.starts[number + 1] - start;
    int M = int(min(K, int64_t(kSetClasses)));
    const int64_t* order = p.order + start;
    Measure measure{p.measure, number, K};
    double likeness = p.likeness == nullptr ? 0.0 : *p.likeness;
    double worth = worth_of_row(double(n), likeness), weight = worth * p.weight[number];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // How much likelier rows are if they are of each class than if they are any rows; returns the
    // logs of the latter, summed over the rows of this warp, in its first lane. They are relative to
    // the largest logits of the rows.
    __device__ double compare_classes(const int* classes) const {
        double sum_of_logs = 0;
        const int own = lane < M ? classes[lane] : -1;
        for (int64_t i = warp; i < n; i += kWarps) {
            const float* const logits = floats(p.logits, order[i] * K);
            float most;
            const double usual = log_evidence(logits, measure, nullptr, K, most) - log(double(K));
            sum_of_logs += usual;
            if (lane >= kSetClasses) continue;
            const bool possible = own >= 0 && measure[own] > 0;
            floats(p.ratios)[(start + i) * kSetClasses + lane] =
                possible ? float(exp(double(logits[own] - most) - usual)) : 0.0f;
        }
        return lane == 0 ? sum_of_logs : 0.0;
    }

    // The log evidence of any proportions, relative to rows drawn from the measure; by the block.
    __device__ double weigh_proportions(float* dual, double usual, double* scratch) const {
        const double bound = dual_of_group(p.concentration[number], measure, p.counts + number * K,
                                           worth, weight * double(n), K, dual, scratch);
        double sum = 0;
        for (int64_t i = warp; i < n; i += kWarps) {
            float most;  // that of `usual`, too
            sum += log_evidence(floats(p.logits, order[i] * K), measure, dual, K, most);
        }
        sum = block_sum(lane == 0 ? sum : 0.0, scratch);
        return fmax(0.0, bound + weight * (sum - usual));
    }

    // Logs of the sums over all sets of 1, 2, .. classes of the products of their measures, by one
    // warp: the coefficients of the product of all 1 + m x.
    __device__ void log_symmetric(double* logs) const {
        double found[kSetClasses + 1] = {1}, other[kSetClasses + 1];
        for (int64_t k = lane; k < K; k += 32) {
            const double m = measure[k];
#pragma unroll
            for (int s = kSetClasses; s > 0; --s) found[s] += found[s - 1] * m;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
#pragma unroll
            for (int s = 0; s <= kSetClasses; ++s) {
                other[s] = __shfl_xor_sync(kAllLanes, found[s], step);
            }
#pragma unroll
            for (int s = kSetClasses; s > 0; --s) {
                double sum = found[s] + other[s];  // the first coefficients are 1
#pragma unroll
                for (int i = 1; i < s; ++i) sum += found[i] * other[s - i];
                found[s] = sum;
            }
        }
#pragma unroll
        for (int s = 1; s <= kSetClasses; ++s) {
            if (lane == s) logs[s - 1] = log(found[s]);
        }
    }

    // The log evidence of the set of this thread.
    __device__ double weigh_set(const int* classes) const {
        const unsigned set = threadIdx.x;
        const double log_size = log(double(__popc(set)));
        double sum = 0, product = 1;  // of ratios whose logarithm is still to be taken
        for (int64_t i = 0; i < n; i += kAtOnce) {
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                const float ratio = Ratios(p, start + min(i + j, n - 1)).sum(set);
                product *= i + j < n ? double(fmaxf(float(kLeastRatio), ratio)) : 1.0;
            }
            if (product > 1e-100 && product < 1e100) continue;
            sum += log(product);
            product = 1;
        }
        sum = weight * (sum + log(product) - double(n) * log_size);
        for (int i = 0; i < M; ++i) {
            if (set >> i & 1) sum += fmax(kImpossible, log(measure[classes[i]]));
        }
        return fmax(kImpossible, sum);
    }

    // Replaces the probabilities of row i, by one warp; `of_set` are the chances of the sets.
    __device__ void mix(int64_t i, const int* classes, const float* of_set, float any) const {
        const Ratios ratios(p, start + i);
        float* const u = floats(p.probabilities, order[i] * K);
        const float low = ratios.sum(unsigned(lane), 0, kLaneBits);
        float in_round[kRounds], all = 0, total = 0;
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const float sum = low + ratios.sum(unsigned(round), kLaneBits);
            in_round[round] = of_set[round * 32 + lane] / fmaxf(float(kLeastRatio), sum);
            all += in_round[round];
        }
        for (int64_t k = lane; k < K; k += 32) u[k] *= any;
        __syncwarp();
        float inside = 0;  // of class `lane`
#pragma unroll
        for (int i = 0; i < kSetClasses; ++i) {
            float with = i < kLaneBits && (lane >> i & 1) ? all : 0.0f;
#pragma unroll
            for (int round = 0; round < kRounds; ++round) {
                if (i >= kLaneBits && (round >> (i - kLaneBits) & 1)) with += in_round[round];
            }
            with = warp_sum(with) * ratios.x[i];
            if (lane == i) inside = with;
        }
        if (lane < M) u[classes[lane]] += inside;
        __syncwarp();
        for (int64_t k = lane; k < K; k += 32) total += u[k];
        const float share = 1.0f / fmaxf(float(kLeastRatio), warp_sum(total));
        for (int64_t k = lane; k < K; k += 32) u[k] *= share;
        if (likeness > 0) temper(i, u);
    }

    // softmax( r ln t + (1 - r) ln u ) of row i: what the group says counts 1 - r.
    __device__ void temper(int64_t i, float* u) const {
        const float* const logits = floats(p.logits, order[i] * K);
        const float most = most_possible(logits, measure, K), r = float(likeness);
        float largest = -INFINITY;
        for (int64_t k = lane; k < K; k += 32) {
            const float alone = (logits[k] - most) + measure.log(k);
            const float mixed = r * alone + (1 - r) * logf(fmaxf(float(kLeastRatio), u[k]));
            u[k] = measure[k] > 0 ? mixed : -INFINITY;
            largest = fmaxf(largest, u[k]);
        }
        normalise_logs(u, warp_max(largest), K);
    }
};

__global__ void __launch_bounds__(kThreads, 4) sets_kernel(SetsPlan memory) {
    const SetsParams& p = memory.p;
    __shared__ int classes[kSetClasses];
    __shared__ double evidence[kSets], log_sums[kSetClasses], scratch[kWarps];
    __shared__ float of_set[kSets];
    const Group group{p, blockIdx.x};
    const int lane = group.lane, warp = group.warp, set = int(threadIdx.x), size = __popc(set);
    double* const out = p.evidence + group.number * kCases;
    const double* const chances = p.chances + group.number * kCases;
    if (warp == 0) {
        for (int i = 0, last = -1; i < group.M; ++i) {
            last = next_class(p.counts + group.number * group.K, group.K, last);
            if (lane == 0) classes[i] = last;
        }
    }
    if (warp == 1 && p.evidence != nullptr) group.log_symmetric(out);
    __syncthreads();
    const double usual = block_sum(group.compare_classes(classes), scratch);
    __syncthreads();  // the ratios of all rows are known
    const bool counts = size > 0 && set < 1 << group.M;
    evidence[set] = counts ? group.weigh_set(classes) : kImpossible;
    __syncthreads();
    double most = kImpossible, sum = 0;  // of the sets of warp + 1 classes
    for (int other = lane; other < kSets; other += 32) {
        if (__popc(other) == warp + 1) most = fmax(most, evidence[other]);
    }
    most = warp_max(most);
    for (int other = lane; other < kSets; other += 32) {
        if (__popc(other) == warp + 1) sum += exp(evidence[other] - most);
    }
    sum = most + log(warp_sum(sum));
    if (p.evidence != nullptr) {
        // Sets of more classes than are possible have no evidence.
        if (lane == 0) out[warp] = most > kImpossible / 2 ? sum - out[warp] : kImpossible;
        float* const dual = memory.dual + group.number * group.K;
        const double any = group.weigh_proportions(dual, usual, scratch);
        if (set == 0) out[kSetClasses] = any;
        return;
    }
    if (lane == 0) log_sums[warp] = sum;
    __syncthreads();
    const double own = counts ? exp(evidence[set] - log_sums[size - 1]) * chances[size - 1] : 0.0;
    of_set[set] = float(own);
    __syncthreads();
    for (int64_t i = warp; i < group.n; i += kWarps) {
        group.mix(i, classes, of_set, float(chances[kSetClasses]));
    }
}

}  // namespace

int64_t workspace_cuda(const SetsParams& p) { return SetsPlan{p}.arena.used(); }

void run_cuda(const SetsParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "logits on CUDA must be float32 for the native code");
    const SetsPlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch("sets_kernel", sets_kernel, p.B, kThreads, 0, stream, memory);
}

}  // namespace paddle_ext
