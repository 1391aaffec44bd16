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
constexpr int kAtOnce = 8;        // partners that a row is multiplied by, so that loads overlap

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
            for (int j = 0; j < kAtOnce; ++j) {
                if (first + j >= partners) break;
                product *= 1 + chance * (fmax(double(warp_sum(together[j])), 1e-30) - 1);
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
    float* const u = static_cast<float*>(p.probabilities);
    float *const total = memory.total + group * K, *const factor = memory.factor + group * K;
    float* const share = memory.share + start;
    const double *const prior = p.prior + group * K, weight = p.weight[group];
    double* const counts = p.counts + group * K;
    const auto value = [&](int64_t at, int64_t k) {  // of a class before its row is divided
        const float others = fmaxf(total[k] - float(weight) * u[at], float(prior[k]));
        return rows[at] * factor[k] * others;
    };
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        double count = 0;
        for (int64_t i = 0; i < n; ++i) {
            const float alone = u[order[i] * K + k] = rows[order[i] * K + k];
            count += weight * double(alone);
        }
        counts[k] = count;
    }
    double moved = 0;
    int steps = 0;
    for (const int64_t most = min(int64_t(p.max_iter), n - 1); steps < most;) {
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            total[k] = float(counts[k] + prior[k]);
            factor[k] = float(certainty(counts[k] + prior[k])) * inverse[k];
        }
        __syncthreads();
        for (int64_t i = warp; i < n; i += kWarps) {
            float sum = 0;
            for (int64_t k = lane; k < K; k += 32) {
                const int64_t at = order[i] * K + k;
                sum += u[at] = value(at, k);
            }
            sum = warp_sum(sum);
            if (lane == 0) share[i] = 1.0f / sum;
        }
        __syncthreads();
        moved = 0;
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            double count = 0;
            for (int64_t i = 0; i < n; ++i) {
                count += weight * double(u[order[i] * K + k] *= share[i]);
            }
            moved = fmax(moved, fabs(count - counts[k]));
            counts[k] = count;
        }
        moved = block_max(moved, scratch);
        ++steps;
        if (p.tol > 0 && !(moved > p.tol)) break;
    }
    if (threadIdx.x != 0) return;
    p.criterion[group] = moved;
    p.iterations[group] = steps;
}

}  // namespace

int64_t workspace_cuda(const GroupsParams& p, int) {
    GroupsParams counted = p;
    counted.workspace = nullptr;
    return GroupsWorkspace(counted).arena.used();
}

void run_cuda(const GroupsParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    const DeviceGuard guard(device);
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
