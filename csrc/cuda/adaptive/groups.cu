// `groups` on CUDA: one block per group. Probabilities of its rows stay in the cache; sums over rows
// have a fixed order.

#include "common/adapt.h"
#include "common/workspace.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostChances = 32;  // one for each lane
// So that loads overlap: partners that a row is multiplied by, with lanes for the sum of each, and
// classes of a lane that are read before one is written.
constexpr int kAtOnce = 8, kEach = 32 / kAtOnce, kAhead = 4;

struct GroupsWorkspace {
    Arena arena;
    float *total, *factor;  // [B, K] as in cpu/groups_task.inl
    float* share;           // [Q] 1 / sum over the classes of a row

    explicit GroupsWorkspace(const GroupsParams& p)
        : arena(p.workspace), total(arena.take<float>(p.B * p.K)),
          factor(arena.take<float>(p.B * p.K)), share(arena.take<float>(p.Q)) {}
};

__global__ void __launch_bounds__(kThreads) pair_evidence_kernel(GroupsParams p) {
    __shared__ double sums[kWarps][kMostChances];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start, partners = min(p.partners, n - 1);
    const float* const rows = static_cast<const float*>(p.rows);
    const float* const inverse = static_cast<const float*>(p.inverse) + group * K;
    const double chance = lane < p.C ? p.chances[lane] : 0.0;
    double sum = 0, product = 1;  // of ratios whose logarithm is still to be taken
    for (int64_t i = warp; i < n; i += kWarps) {
        const float* const own = rows + p.order[start + i] * K;
        for (int64_t first = 0; first < partners; first += kAtOnce) {
            // Each of the first lanes finds a partner; those beyond the last are that one again.
            const int64_t nth = min(first + lane % kAtOnce, partners - 1);
            const int64_t after = i + partner_shift(nth, n, p.partners);
            const int64_t place = p.order[start + (after < n ? after : after - n)] * K;
            const float* others[kAtOnce];
            float together[kAtOnce] = {};
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) others[j] = rows + __shfl_sync(kAllLanes, place, j);
            for (int64_t k = lane; k < K; k += 32) {
                const float weighed = own[k] * inverse[k];
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) together[j] += weighed * others[j][k];
            }
#pragma unroll
            for (int half = kAtOnce / 2, lanes = 16; half > 0; half /= 2, lanes /= 2) {
                const bool upper = lane & lanes;  // which sums these lanes add up from here on
#pragma unroll
                for (int j = 0; j < half; ++j) {
                    const float other = upper ? together[j] : together[j + half];
                    together[j] = upper ? together[j + half] : together[j];
                    together[j] += __shfl_xor_sync(kAllLanes, other, lanes);
                }
            }
            const float ratio = fmaxf(group_sum(together[0], kEach), 1e-30f);
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                if (first + j >= partners) break;
                product *= 1 + chance * (double(__shfl_sync(kAllLanes, ratio, kEach * j)) - 1);
                if (product > 1e-200 && product < 1e200) continue;
                sum += log(product);
                product = 1;
            }
        }
    }
    sum += log(product);
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || lane >= p.C) return;
    for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
    p.evidence[group * p.C + lane] = sum / (2.0 * double(max(partners, int64_t(1))));
}

__global__ void __launch_bounds__(kThreads) group_kernel(GroupsParams p, GroupsWorkspace memory) {
    __shared__ double scratch[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start;
    const int64_t* const order = p.order + start;
    const float* const rows = static_cast<const float*>(p.rows);
    const float* const inverse = static_cast<const float*>(p.inverse) + group * K;
    float *const u = static_cast<float*>(p.probabilities), *const share = memory.share + start;
    float *const total = memory.total + group * K, *const factor = memory.factor + group * K;
    const double *const prior = p.prior + group * K, weight = p.weight[group];
    double* const counts = p.counts + group * K;
    const float* last = rows;  // probabilities before rows are multiplied by their share
    for (int64_t i = threadIdx.x; i < n; i += kThreads) share[i] = 1;
    for (int steps = 0, most = int(min(int64_t(p.max_iter), n - 1));; ++steps) {
        __syncthreads();
        double moved = 0;
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            double count = 0;
            for (int64_t i = 0; i < n; ++i) count += weight * (last[order[i] * K + k] * share[i]);
            if (steps > 0) moved = fmax(moved, fabs(count - counts[k]));
            counts[k] = count;
            total[k] = float(count + prior[k]);
            factor[k] = float(certainty(count + prior[k])) * inverse[k];
        }
        moved = block_max(moved, scratch);
        p.criterion[group] = moved, p.iterations[group] = steps;  // the same in all threads
        if (steps == most || (steps > 0 && p.tol > 0 && !(moved > p.tol))) break;
        for (int64_t i = warp; i < n; i += kWarps) {
            const int64_t row = order[i] * K;
            const float before = float(weight) * share[i];
            float sum = 0, values[kAhead];
            for (int64_t first = lane; first < K; first += 32 * kAhead) {
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    const int64_t k = min(first + 32 * j, K - 1);
                    const float others = fmaxf(total[k] - before * last[row + k], float(prior[k]));
                    values[j] = rows[row + k] * factor[k] * others;
                }
#pragma unroll
                for (int j = 0; j < kAhead; ++j) {
                    if (first + 32 * j < K) sum += u[row + first + 32 * j] = values[j];
                }
            }
            share[i] = 1.0f / warp_sum(sum);
        }
        last = u;
    }
    for (int64_t i = warp; i < n; i += kWarps) {
        const int64_t row = order[i] * K;
        for (int64_t k = lane; k < K; k += 32) u[row + k] = last[row + k] * share[i];
    }
}

}  // namespace

int64_t workspace_cuda(const GroupsParams& p) { return GroupsWorkspace(p).arena.used(); }

void run_cuda(const GroupsParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    if (p.C > 0) {
        require(p.C <= kMostChances, "too many chances: ", p.C);
        launch("pair_evidence_kernel", pair_evidence_kernel, p.B, kThreads, 0, stream, p);
        return;
    }
    const GroupsWorkspace memory(p);
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch("group_kernel", group_kernel, p.B, kThreads, 0, stream, p, memory);
}

}  // namespace paddle_ext
