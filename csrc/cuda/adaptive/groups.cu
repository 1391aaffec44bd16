// `pairs`, `groups`, `mixture`, `mean` and `likeness` on CUDA: one block per group. Sums over rows have
// a fixed order. The algebra is in common/groups.h.

#include "common/groups.h"
#include "common/workspace.h"
#include "cuda/adaptive/groups.cuh"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"
#include "cuda/team.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// --- pairs ---------------------------------------------------------------------------------------

constexpr int kSide = 16,
              kDepth = 32;  // rows of a tile of pairs, and classes that are near at once
static_assert(kSide * kSide == kThreads, "a thread for each pair of a tile");

struct PairsPlan {
    PairsParams p;
    Arena arena{p.workspace};
    float* alone = arena.take<float>(p.N * p.K);  // t, in the order of the groups
};

// One warp per row.
__global__ void __launch_bounds__(kThreads) alone_kernel(PairsPlan memory) {
    const PairsParams& p = memory.p;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start;
    const Measure measure(p.measure, group, K);
    for (int64_t i = threadIdx.x / 32; i < n; i += kWarps) {
        write_alone(floats(p.logits, p.order[start + i] * K), measure, K,
                    memory.alone + (start + i) * K);
    }
}

// A tile of pairs at a time, each thread one of them; then a thread has the sums of a chance.
__global__ void __launch_bounds__(kThreads) compare_pairs_kernel(PairsPlan memory) {
    const PairsParams& p = memory.p;
    __shared__ float first[kSide][kDepth + 1], second[kSide][kDepth + 1], inverse[kDepth];
    __shared__ double scratch[kWarps];
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = min(p.starts[group + 1] - start, kMostPaired);
    const int tiles = int(ceil_div(n, int64_t(kSide)));
    const int x = threadIdx.x % kSide, y = threadIdx.x / kSide;
    const float* const alone = memory.alone + start * K;
    const Measure measure(p.measure, group, K);
    double sums[kChances], products[kChances];
#pragma unroll
    for (int c = 0; c < kChances; ++c) sums[c] = 0, products[c] = 1;

    int multiplied = 0;  // factors of the products, the same in all threads
    for (int upper = 0; upper < tiles; ++upper) {
        for (int lower = upper; lower < tiles; ++lower) {
            const int64_t i = int64_t(upper) * kSide + y, j = int64_t(lower) * kSide + x;
            float ratio = 0;
            for (int64_t begin = 0; begin < K; begin += kDepth) {
                __syncthreads();  // the last numbers have been read
                if (threadIdx.x < kDepth) {
                    const int64_t k = begin + threadIdx.x;
                    inverse[threadIdx.x] = k < K ? measure.inverse(k) : 0.0f;
                }
                for (int at = threadIdx.x; at < kSide * kDepth; at += kThreads) {
                    const int row = at / kDepth, column = at % kDepth;
                    const int64_t k = begin + column, a = int64_t(upper) * kSide + row;
                    const int64_t b = int64_t(lower) * kSide + row;
                    first[row][column] = a < n && k < K ? alone[a * K + k] : 0.0f;
                    second[row][column] = b < n && k < K ? alone[b * K + k] : 0.0f;
                }
                __syncthreads();
#pragma unroll
                for (int k = 0; k < kDepth; ++k) ratio += first[y][k] * inverse[k] * second[x][k];
            }
            // Each pair once; others, and what is beyond the last row, are as if independent.
            const double known = i < j && j < n ? double(ratio) : 1.0;
#pragma unroll
            for (int c = 0; c < kChances; ++c) products[c] *= pair_factor(nth_chance(c), known);
            if (++multiplied % kPairsAtOnce != 0) continue;
#pragma unroll
            for (int c = 0; c < kChances; ++c) {
                if (products[c] > kLeastProduct && products[c] < kMostProduct) continue;
                sums[c] += log(products[c]);
                products[c] = 1;
            }
        }
    }

    const double weight = pair_weight(p.sizes[group], n);
#pragma unroll
    for (int c = 0; c < kChances; ++c) {
        const double sum = block_sum(sums[c] + log(products[c]), scratch);
        if (threadIdx.x == 0) p.evidence[group * kChances + c] = weight * sum;
    }
}

// --- proportions ---------------------------------------------------------------------------------

struct GroupsPlan {
    GroupsParams p;
    Arena arena{p.workspace};
    float* total = arena.take<float>(p.B * p.K);  // [B, K] as in GroupClass, like the next two
    float* prior = arena.take<float>(p.B * p.K);
    float* factor = arena.take<float>(p.B * p.K);
};

// Sums of the probabilities of a group: each warp those of its rows, in registers, or each thread
// those of its classes if there are many. Returns those of class k to one thread, by visit(k, sum).
constexpr int kHeld = 4;  // classes of a lane

template <typename Visit>
__device__ void each_sum(const float* u, const int64_t* order, int64_t n, int64_t K,
                         double (*sums)[32 * kHeld], const Visit& visit) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (K > 32 * kHeld) {
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            double sum = 0;
#pragma unroll 8
            for (int64_t i = 0; i < n; ++i) sum += double(u[order[i] * K + k]);
            visit(k, sum);
        }
        return;
    }
    double held[kHeld] = {};
    for (int64_t i = warp; i < n; i += kWarps) {
        const float* const row = u + order[i] * K;
#pragma unroll
        for (int j = 0; j < kHeld; ++j) held[j] += lane + 32 * j < K ? row[lane + 32 * j] : 0.0f;
    }
    __syncthreads();  // the last sums have been read
#pragma unroll
    for (int j = 0; j < kHeld; ++j) sums[warp][lane + 32 * j] = held[j];
    __syncthreads();
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        double sum = 0;
        for (int other = 0; other < kWarps; ++other) sum += sums[other][k];
        visit(k, sum);
    }
}

__global__ void __launch_bounds__(kThreads) group_kernel(GroupsPlan memory) {
    const GroupsParams& p = memory.p;
    __shared__ double scratch[kWarps], sums[kWarps][32 * kHeld];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t group = blockIdx.x, K = p.K, start = p.starts[group];
    const int64_t n = p.starts[group + 1] - start;
    const int64_t* const order = p.order + start;
    const double weight = p.weight[group], a = p.concentration[group];
    const float known = p.likeness == nullptr ? 1.0f : float(1 - *p.likeness);
    const Measure measure(p.measure, group, K);
    float *const u = floats(p.probabilities), *const total = memory.total + group * K;
    float *const prior = memory.prior + group * K, *const factor = memory.factor + group * K;
    double* const counts = p.counts + group * K;
    for (int64_t i = warp; p.alone && i < n; i += kWarps) {
        write_alone(floats(p.logits, order[i] * K), measure, K, u + order[i] * K);
    }

    double moved = 0;
    for (int step = 0;; ++step) {
        __syncthreads();  // all rows are written
        moved = 0;
        each_sum(u, order, n, K, sums, [&](int64_t k, double sum) {
            const double count = weight * sum;
            if (step > 0) moved = fmax(moved, fabs(count - counts[k]));
            counts[k] = count;
            const GroupClass own(count, a, measure[k]);
            total[k] = float(own.total), prior[k] = float(own.prior);
            factor[k] = float(own.factor);
        });
        __syncthreads();
        if (step == p.steps) break;
        for (int64_t i = warp; i < n; i += kWarps) {
            const int64_t row = order[i] * K;
            const float* const logits = floats(p.logits, row);
            const float most = most_possible(logits, measure, K);
            float largest = -INFINITY;
            for (int64_t k = lane; k < K; k += 32) {
                const float others =
                    from_others(total[k], prior[k], factor[k], float(weight) * u[row + k]);
                const float logit = (logits[k] - most) + measure.log(k) + known * logf(others);
                u[row + k] = measure[k] > 0 ? logit : -INFINITY;
                largest = fmaxf(largest, u[row + k]);
            }
            normalise_logs(u + row, warp_max(largest), K);
        }
    }
    moved = block_max(moved, scratch);
    if (threadIdx.x == 0) p.criterion[group] = moved;
    if (p.bound == nullptr) return;

    // The mean log proportions take the place of the totals.
    const double found =
        dual_of_group(a, measure, counts, 1.0, weight * double(n), K, total, scratch);
    double sum = 0;
    for (int64_t i = warp; i < n; i += kWarps) {
        float most;
        sum += log_evidence(floats(p.logits, order[i] * K), measure, total, K, most);
        sum += double(most);
    }
    sum = block_sum(lane == 0 ? sum : 0.0, scratch);
    if (threadIdx.x == 0) p.bound[group] = found + weight * sum;
}

// --- a mixture of cases --------------------------------------------------------------------------

constexpr int kMostCases = 32;  // one for each lane
static_assert(kChances <= kMostCases && kCases <= kMostCases, "a lane for each case");

struct MixturePlan {
    MixtureParams p;
    Arena arena{p.workspace};
    TeamMemory* team = arena.take<TeamMemory>(1);
    // [2, most blocks, 32] of the blocks, in this step and the one before
    double* sums = arena.take<double>(2 * kMostTeamBlocks * kMostCases);
};

// A thread weighs the cases of one group at a time.
__global__ void __launch_bounds__(kThreads) mixture_kernel(MixturePlan memory, int blocks) {
    const MixtureParams& p = memory.p;
    __shared__ double sums[kWarps][kMostCases], held[kMostCases];
    Team team(memory.team, int(blockIdx.x), blocks);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < p.C) held[threadIdx.x] = 1 / double(p.C);
    for (int64_t group = team.thread; group < p.N; group += team.threads) {
        double* const likely = p.evidence + group * p.C;
        double most = likely[0];
        for (int c = 1; c < p.C; ++c) most = fmax(most, likely[c]);
        for (int c = 0; c < p.C; ++c) likely[c] = exp(likely[c] - most);
    }
    __syncthreads();

    for (int step = 0; step < kMixtureEmSteps; ++step) {
        double own[kMostCases] = {};
        for (int64_t group = team.thread; group < p.N; group += team.threads) {
            const double* const likely = p.evidence + group * p.C;
            double whole = 0;
#pragma unroll
            for (int c = 0; c < kMostCases; ++c) {
                if (c < p.C) whole += likely[c] * held[c];
            }
            const double share = 1 / whole;
#pragma unroll
            for (int c = 0; c < kMostCases; ++c) {
                if (c < p.C) own[c] += likely[c] * held[c] * share;
            }
        }
#pragma unroll
        for (int c = 0; c < kMostCases; ++c) {
            if (c < p.C) own[c] = warp_sum(own[c]);
            if (c < p.C && lane == 0) sums[warp][c] = own[c];
        }
        __syncthreads();
        double* const parts = memory.sums + step % 2 * blocks * kMostCases;
        if (threadIdx.x < p.C) {
            double sum = 0;
            for (int other = 0; other < kWarps; ++other) sum += sums[other][threadIdx.x];
            parts[blockIdx.x * kMostCases + threadIdx.x] = sum;
        }
        team.sync();
        if (threadIdx.x < p.C) {
            double sum = 0;
#pragma unroll 16
            for (int block = 0; block < blocks; ++block) {
                sum += __ldcg(parts + block * kMostCases + threadIdx.x);
            }
            held[threadIdx.x] = fmax(kLeastShare, sum / double(p.N));
        }
        __syncthreads();
    }

    for (int64_t group = team.thread; group < p.N; group += team.threads) {
        double* const chances = p.evidence + group * p.C;
        double sum = 0, mean = 0;
        for (int c = 0; c < p.C; ++c) sum += chances[c] *= held[c];
        for (int c = 0; c < p.C; ++c) {
            chances[c] /= sum;
            if (p.concentration != nullptr) mean += chances[c] * nth_chance(c);
        }
        if (p.concentration != nullptr)
            p.concentration[group] = concentration_of(mean, double(p.K));
    }
}

// --- mean proportions ----------------------------------------------------------------------------

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

// --- likeness ------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) likeness_kernel(LikenessParams p) {
    const double r = likeness_of(*static_cast<const LikenessSums*>(p.sums), double(p.Q));
    const int64_t group = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (group == 0) *p.likeness = r;
    if (group < p.B) p.worth[group] = worth_of_row(double(p.sizes[group]), r);
}

}  // namespace

int64_t workspace_cuda(const PairsParams& p) { return PairsPlan{p}.arena.used(); }

void run_cuda(const PairsParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "logits on CUDA must be float32 for the native code");
    const PairsPlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch("alone_kernel", alone_kernel, p.B, kThreads, 0, stream, memory);
    launch("compare_pairs_kernel", compare_pairs_kernel, p.B, kThreads, 0, stream, memory);
}

int64_t workspace_cuda(const GroupsParams& p) { return GroupsPlan{p}.arena.used(); }

void run_cuda(const GroupsParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "logits on CUDA must be float32 for the native code");
    const GroupsPlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch("group_kernel", group_kernel, p.B, kThreads, 0, stream, memory);
}

int64_t workspace_cuda(const MixtureParams& p) { return MixturePlan{p}.arena.used(); }

void run_cuda(const MixtureParams& p, cudaStream_t stream) {
    require(p.C <= kMostCases, "too many cases: ", p.C);
    const MixturePlan memory{p};
    require_workspace(p.workspace_bytes, memory.arena.used());
    launch_teams("mixture_kernel", mixture_kernel, 1, ceil_div(p.N, int64_t(kThreads)), kThreads, 0,
                 memory.team, stream, memory);
}

void run_cuda(const MeanParams& p, cudaStream_t stream) {
    launch("mean_kernel", mean_kernel, 1, kThreads, 0, stream, p);
}

void run_cuda(const LikenessParams& p, cudaStream_t stream) {
    const int64_t blocks = ceil_div(p.B, int64_t(kThreads));
    launch("likeness_kernel", likeness_kernel, blocks, kThreads, 0, stream, p);
}

}  // namespace paddle_ext
