// `groups` on CUDA: one block per group. Sums over rows have a fixed order.

#include "common/adapt.h"
#include "common/workspace.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"
#include "cuda/team.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMostChances = 32;  // one for each lane
// Limits of what a group has in shared memory: three blocks fit on a multiprocessor, or more if rows
// are short.
constexpr int64_t kNearBytes = 72 << 10, kNearRows = 64;
// So that loads overlap: partners that a row is multiplied by, with lanes for the sum of each, and
// classes of a lane that are read before one is written.
constexpr int kAtOnce = 8, kEach = 32 / kAtOnce, kAhead = 4;

struct GroupsPlan {
    GroupsParams p;
    Arena arena{p.workspace};
    float* total = arena.take<float>(p.B * p.K);   // [B, K] as in cpu/groups_task.inl, ...
    float* factor = arena.take<float>(p.B * p.K);  // [B, K] ... like this
    float* share = arena.take<float>(p.Q);         // [Q] 1 / sum over the classes of a row
};

__global__ void __launch_bounds__(kThreads) compare_pairs_kernel(GroupsParams p) {
    __shared__ double sums[kWarps][kMostChances];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start, partners = min(p.partners, n - 1);
    const float* const rows = floats(p.rows);
    const float* const inverse = floats(p.inverse, group * K);
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
    if (warp > 0) return;
    for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
    sum = lane < p.C ? sum / (2.0 * double(max(partners, int64_t(1)))) : -INFINITY;
    const double best = warp_max(sum);
    if (lane < p.C) p.likely[group * p.C + lane] = exp(sum - best);
}

struct MixturePlan {
    MixtureParams p;
    Arena arena{p.workspace};
    TeamMemory* team = arena.take<TeamMemory>(1);
    // [2, most blocks, 32] of the blocks, in this step and the one before
    double* sums = arena.take<double>(2 * kMostTeamBlocks * kMostChances);
};

// A thread weighs the chances of one group at a time.
__global__ void __launch_bounds__(kThreads) mixture_kernel(MixturePlan memory, int blocks) {
    const MixtureParams& p = memory.p;
    __shared__ double sums[kWarps][kMostChances], held[kMostChances];
    Team team(memory.team, int(blockIdx.x), blocks);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < p.C) held[threadIdx.x] = p.shares[threadIdx.x];
    __syncthreads();
    for (int step = 0; step < p.steps; ++step) {
        double own[kMostChances] = {};
        for (int64_t group = team.thread; group < p.N; group += team.threads) {
            const double* const likely = p.likely + group * p.C;
            double whole = 0;
#pragma unroll
            for (int c = 0; c < kMostChances; ++c) {
                if (c < p.C) whole += likely[c] * held[c];
            }
            const double share = 1 / whole;
#pragma unroll
            for (int c = 0; c < kMostChances; ++c) {
                if (c < p.C) own[c] += likely[c] * held[c] * share;
            }
        }
#pragma unroll
        for (int c = 0; c < kMostChances; ++c) {
            if (c < p.C) own[c] = warp_sum(own[c]);
            if (c < p.C && lane == 0) sums[warp][c] = own[c];
        }
        __syncthreads();
        double* const parts = memory.sums + step % 2 * blocks * kMostChances;
        if (threadIdx.x < p.C) {
            double sum = 0;
            for (int other = 0; other < kWarps; ++other) sum += sums[other][threadIdx.x];
            parts[blockIdx.x * kMostChances + threadIdx.x] = sum;
        }
        team.sync();
        if (threadIdx.x < p.C) {
            double sum = 0;
#pragma unroll 16
            for (int block = 0; block < blocks; ++block) {
                sum += __ldcg(parts + block * kMostChances + threadIdx.x);
            }
            held[threadIdx.x] = sum / double(p.N);
        }
        __syncthreads();
    }
    for (int64_t group = team.thread; group < p.N; group += team.threads) {
        double sum = 0, mean = 0;
        for (int c = 0; c < p.C; ++c) {
            const double own = p.likely[group * p.C + c] * held[c];
            sum += own;
            mean += own * p.chances[c];
        }
        p.means[group] = mean / sum;
    }
    if (blockIdx.x == 0 && threadIdx.x < p.C) p.shares[threadIdx.x] = held[threadIdx.x];
}

__global__ void __launch_bounds__(kThreads) mean_kernel(MeanParams p) {
    __shared__ double scratch[kWarps];
    const double K = double(p.K);
    double total = 0, a = kFirstConcentration;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) total += p.held[k];
    total = block_sum(total, scratch);
    for (int step = 0; step < p.steps; ++step) {
        PriorTerm sum = {0, 0};
        for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
            const PriorTerm own = class_term(p.held[k], a, 1);
            sum.slope += own.slope, sum.curvature += own.curvature;
        }
        const PriorTerm whole = whole_term(a, total, K);
        const double slope = block_sum(sum.slope, scratch) + whole.slope;
        const double curvature = block_sum(sum.curvature, scratch) + whole.curvature;
        a = next_concentration(a, slope, curvature, kMinConcentration);
    }
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        p.measure[k] = (p.held[k] + a) * (K / (total + K * a));
    }
}

// A group in shared memory: sums of each warp, counts and factors, its rows, their probabilities.
__host__ __device__ int64_t near_numbers(int64_t n, int64_t K) { return (kWarps + 2 + 2 * n) * K; }

// A step of the rows [n, K] of a group in shared memory, with kPer classes of each row in a lane;
// `sums` of the new probabilities u are those of each warp.
template <int kPer>
__device__ void near_step(int n, int K, float weight, const float* total, const float* factor,
                          const double* prior, const float* rows, float* u, float* sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float all[kPer] = {}, by[kPer] = {}, least[kPer] = {}, sum[kPer] = {};
#pragma unroll
    for (int j = 0, k = lane; j < kPer; ++j, k += 32) {
        if (k < K) all[j] = total[k], by[j] = factor[k], least[j] = float(prior[k]);
    }
    for (int i = warp; i < n; i += kWarps) {
        float values[kPer], whole = 0;
#pragma unroll
        for (int j = 0, k = lane; j < kPer; ++j, k += 32) {
            const float others = fmaxf(all[j] - weight * (k < K ? u[i * K + k] : 0), least[j]);
            whole += values[j] = (k < K ? rows[i * K + k] : 0) * by[j] * others;
        }
        const float share = 1.0f / warp_sum(whole);
#pragma unroll
        for (int j = 0, k = lane; j < kPer; ++j, k += 32) {
            sum[j] += values[j] *= share;
            if (k < K) u[i * K + k] = values[j];
        }
    }
#pragma unroll
    for (int j = 0, k = lane; j < kPer; ++j, k += 32) {
        if (k < K) sums[warp * K + k] = sum[j];
    }
}

// Groups that have at most `numbers` numbers, and 32 kPer classes, stay in shared memory.
template <int kPer>
__global__ void __launch_bounds__(kThreads) group_kernel(GroupsPlan memory, int64_t numbers) {
    const GroupsParams& p = memory.p;
    extern __shared__ float near[];
    __shared__ double scratch[kWarps];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start;
    const bool is_near = K <= 32 * kPer && near_numbers(n, K) <= numbers;
    const int64_t* const order = p.order + start;
    const float* const rows = floats(p.rows);
    const float* const inverse = floats(p.inverse, group * K);
    float *const u = floats(p.probabilities), *const share = memory.share + start;
    float* const total = is_near ? near + kWarps * K : memory.total + group * K;
    float* const factor = is_near ? total + K : memory.factor + group * K;
    float *const near_rows = near + (kWarps + 2) * K, *const near_u = near_rows + n * K;
    const double *const prior = p.prior + group * K, weight = p.weight[group];
    double* const counts = p.counts + group * K;
    const float* last = rows;  // probabilities before rows are multiplied by their share
    for (int64_t i = threadIdx.x; i < n; i += kThreads) share[i] = 1;
    for (int64_t k = threadIdx.x; is_near && k < K; k += kThreads) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) {
            sum += near_rows[i * K + k] = near_u[i * K + k] = rows[order[i] * K + k];
        }
        for (int other = 0; other < kWarps; ++other) near[other * K + k] = other == 0 ? sum : 0;
    }
    for (int steps = 0, most = int(min(int64_t(p.max_iter), n - 1));; ++steps) {
        __syncthreads();
        double moved = 0;
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            double count = 0;
            if (is_near) {
                for (int other = 0; other < kWarps; ++other) count += double(near[other * K + k]);
            } else {
                for (int64_t i = 0; i < n; ++i) count += double(last[order[i] * K + k] * share[i]);
            }
            count *= weight;
            if (steps > 0) moved = fmax(moved, fabs(count - counts[k]));
            counts[k] = count;
            total[k] = float(count + prior[k]);
            factor[k] = float(certainty(count + prior[k])) * inverse[k];
        }
        moved = block_max(moved, scratch);
        p.criterion[group] = moved, p.iterations[group] = steps;  // the same in all threads
        if (steps >= most || (steps > 0 && p.tol > 0 && !(moved > p.tol))) break;
        if (is_near) {
            near_step<kPer>(int(n), int(K), float(weight), total, factor, prior, near_rows, near_u,
                            near);
            continue;
        }
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
        for (int64_t k = lane; k < K; k += 32) {
            u[row + k] = is_near ? near_u[i * K + k] : last[row + k] * share[i];
        }
    }
}

struct JudgePlan {
    JudgeParams p;
    Arena arena{p.workspace};
    float* total = arena.take<float>(p.B * p.K);
};

// One block per group, one warp per row.
__global__ void __launch_bounds__(kThreads) judge_kernel(JudgePlan memory) {
    const JudgeParams& p = memory.p;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start;
    const int64_t* const order = p.order + start;
    const float *const even = floats(p.even, group * K), *const kept = floats(p.kept, group * K);
    float* const total = memory.total + group * K;
    const float share = floats(p.share)[group];
    for (int pass = 0; pass < 2; ++pass) {
        const float known = pass == 0 ? floats(p.known)[group] : 1.0f;
        const float temper = pass == 0 ? 1.0f : float(p.temper);
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            double sum = 0;
#pragma unroll 8
            for (int64_t i = 0; i < n; ++i)
                sum += double(floats(p.probabilities)[order[i] * K + k]);
            total[k] = float(1 + double(kept[k]) * sum);
        }
        __syncthreads();
        for (int64_t i = warp; i < n; i += kWarps) {
            float* const u = floats(p.probabilities, order[i] * K);
            const float* const logits = floats(p.logits, order[i] * K);
            float most = -INFINITY, sum = 0;
            for (int64_t k = lane; k < K; k += 32) {
                const float others = logf(fmaxf(1.0f, total[k] - kept[k] * u[k]));
                u[k] = temper * (even[k] + known * others + share * logits[k]);
                most = fmaxf(most, u[k]);
            }
            most = warp_max(most);
            for (int64_t k = lane; k < K; k += 32) sum += u[k] = expf(u[k] - most);
            const float unit = 1.0f / warp_sum(sum);
            for (int64_t k = lane; k < K; k += 32) u[k] *= unit;
        }
        __syncthreads();
    }
}

}  // namespace

int64_t workspace_cuda(const JudgeParams& p) { return JudgePlan{p}.arena.used(); }

void run_cuda(const JudgeParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "logits on CUDA must be float32 for the native code");
    const JudgePlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch("judge_kernel", judge_kernel, p.B, kThreads, 0, stream, memory);
}

int64_t workspace_cuda(const GroupsParams& p) { return GroupsPlan{p}.arena.used(); }

void run_cuda(const GroupsParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    if (p.C > 0) {
        require(p.C <= kMostChances, "too many chances: ", p.C);
        launch("compare_pairs_kernel", compare_pairs_kernel, p.B, kThreads, 0, stream, p);
        return;
    }
    const GroupsPlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    const int64_t bytes = min(kNearBytes, near_numbers(kNearRows, p.K) * int64_t(sizeof(float)));
    const auto kernel = p.K <= 64    ? group_kernel<2>
                        : p.K <= 160 ? group_kernel<5>
                                     : group_kernel<8>;
    allow_all_shared(kernel);
    launch("group_kernel", kernel, p.B, kThreads, bytes, stream, memory,
           bytes / int64_t(sizeof(float)));
}

int64_t workspace_cuda(const MixtureParams& p) { return MixturePlan{p}.arena.used(); }

void run_cuda(const MixtureParams& p, cudaStream_t stream) {
    require(p.C <= kMostChances, "too many chances: ", p.C);
    const MixturePlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch_teams("mixture_kernel", mixture_kernel, 1, ceil_div(p.N, int64_t(kThreads)), kThreads, 0,
                 memory.team, stream, memory);
}

void run_cuda(const MeanParams& p, cudaStream_t stream) {
    launch("mean_kernel", mean_kernel, 1, kThreads, 0, stream, p);
}

}  // namespace paddle_ext
