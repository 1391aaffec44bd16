// Rows of large tasks on CUDA, from products to probabilities and their sums by class. With more
// classes than a block takes, an earlier launch finds each row's largest logit and sum.

#include "common/large.h"
#include "cuda/large/rows.cuh"
#include "cuda/mma.cuh"

namespace paddle_ext {

namespace {

// The logits of the rows of one task.
struct Logits {
    const AssignParams& p;
    int64_t task, stride = p.stride;
    const float* products = floats(p.products, task* p.N* stride);
    const float* length = p.length == nullptr ? nullptr : floats(p.length, task* p.N);
    const float* bias = floats(p.bias, task* p.K);
    float slope = floats(p.slope)[task];

    __device__ float length_of(int64_t row) const { return length == nullptr ? 1.0f : length[row]; }
};

// The logits of row `row`, counted over all tasks.
struct RowLogits {
    const AssignParams& p;
    int64_t row;
    Logits all{p, row / p.N};
    int64_t q = row % p.N;
    float factor = all.slope * all.length_of(q);

    __device__ float operator()(int64_t k) const {
        return comparable(fmaf(factor, all.products[q * all.stride + k], all.bias[k]));
    }
};

// One warp per row: the stats of all rows, for tasks with more classes than a block handles.
__global__ void __launch_bounds__(kThreads) stats_kernel(AssignParams p, RowStats* stats) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const RowLogits logit{p, row};
    float most = kNothing, sum = 0;
    for (int64_t k = lane; k < p.K; k += 32) most = fmaxf(most, logit(k));
    most = warp_max(most);
    for (int64_t k = lane; k < p.K; k += 32) sum += expf(logit(k) - most);
    sum = warp_sum(sum);
    if (lane == 0) stats[row] = {most, 1.0f / sum};
}

// The products of a warp's next row, on their way to shared memory while it works on the last one. A
// lane reads what it copied itself, so no lane waits for others.
template <int kVectors, int kWidth>
struct Staged {
    static constexpr int kLine = 32 * kVectors * kWidth;
    float* own;  // [kLine] of this warp
    const Logits& logits;
    int64_t first_class;
    int classes;

    __device__ void fetch(int64_t row) const {
        const float* const from = logits.products + row * logits.stride + first_class;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k < classes) copy_async<4 * kWidth>(own + k, from + k);
        }
        commit_copies();
    }

    // The logits of the row that was fetched last.
    __device__ void read(float factor, float (&out)[kVectors][kWidth]) const {
        wait_copies<0>();
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k >= classes) {
#pragma unroll
                for (int j = 0; j < kWidth; ++j) out[i][j] = kNothing;
                continue;
            }
            const Some<kWidth> product = load<kWidth>(own + k);
            const Some<kWidth> base = load<kWidth>(logits.bias + first_class + k);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                out[i][j] = comparable(fmaf(factor, product.x[j], base.x[j]));
            }
        }
    }
};

// The largest classes of a row, one after the other, from the values in all lanes, which are
// overwritten; of equal ones, the smaller number first.
template <int kVectors, int kWidth>
__device__ void write_top(const AssignParams& p, int64_t row, float share, int classes,
                          float (&value)[kVectors][kWidth]) {
    for (int64_t rank = 0; rank < p.top; ++rank) {
        float best = -1.0f;
        int label = 0x7fffffff;
        each_class<kVectors, kWidth>([&](int i, int j) {
            const int k = class_of<kWidth>(i) + j;
            if (k < classes && value[i][j] > best) {
                best = value[i][j];
                label = k;
            }
        });
        label = warp_argmax(best, label);
        best = warp_max(best);
        each_class<kVectors, kWidth>([&](int i, int j) {
            if (class_of<kWidth>(i) + j == label) value[i][j] = -2.0f;
        });
        if (threadIdx.x % 32 == 0) {
            p.top_classes[row * p.top + rank] = label;
            floats(p.top_probabilities)[row * p.top + rank] = best * share;
        }
    }
}

template <int kVectors, int kWidth, typename Written>
__global__ void __launch_bounds__(kThreads, 2)
    assign_kernel(AssignParams p, RowsWorkspace all, const RowStats* stats) {
    extern __shared__ __align__(16) float memory[];  // [kWarps, kLine]
    const Place at{p.N, p.K, all.rows};
    const Logits logits{p, at.task};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t end = min(p.N, at.first_row + all.rows);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    Written* const out = static_cast<Written*>(p.probabilities);
    Written* const rest = static_cast<Written*>(p.rest);
    constexpr int kLine = Staged<kVectors, kWidth>::kLine;
    const Staged<kVectors, kWidth> staged{memory + warp * kLine, logits, at.first_class, classes};
    if (at.first_row + warp < end) staged.fetch(at.first_row + warp);
    float held[kVectors][kWidth] = {};
    double log_sum = 0;
    for (int64_t q = at.first_row + warp; q < end; q += kWarps) {
        const float length = logits.length_of(q), factor = logits.slope * length;
        float value[kVectors][kWidth];
        float most = kNothing, share;
        staged.read(factor, value);
        if (q + kWarps < end) staged.fetch(q + kWarps);
        each_class<kVectors, kWidth>([&](int i, int j) { most = fmaxf(most, value[i][j]); });
        most = stats == nullptr ? warp_max(most) : stats[at.task * p.N + q].most;
        float sum = 0;
        each_class<kVectors, kWidth>([&](int i, int j) {
            value[i][j] = exp2_approx((value[i][j] - most) * kLog2e<float>);
            sum += value[i][j];
        });
        share = stats == nullptr ? 1.0f / warp_sum(sum) : stats[at.task * p.N + q].share;
        if (p.log_sums != nullptr) log_sum += double(most - logf(share));
        const float scale = p.normalise ? share : float(kLikelihoodUnit);
        const float written = p.weigh ? scale * length : scale;
        const int64_t first = (at.task * p.N + q) * p.K + at.first_class;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k >= classes) continue;
            Some<kWidth, Written> high;
            float kept[kWidth];
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                high.x[j] = Written(value[i][j] * written);
                kept[j] = to_float(high.x[j]);
            }
            if (out != nullptr) {
                *reinterpret_cast<Some<kWidth, Written>*>(out + first + k) = high;
            }
            if (rest != nullptr) {
                Some<kWidth, Written> low;
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    low.x[j] = Written(value[i][j] * written - kept[j]);
                    kept[j] += to_float(low.x[j]);
                }
                *reinterpret_cast<Some<kWidth, Written>*>(rest + first + k) = low;
            }
            // The weights of a mean and their sum must agree.
#pragma unroll
            for (int j = 0; j < kWidth; ++j) held[i][j] += p.weigh ? value[i][j] * scale : kept[j];
        }
        if (p.top > 0 && stats == nullptr) write_top(p, at.task * p.N + q, share, classes, value);
    }
    const int64_t part = at.task * all.blocks + at.block;
    if (p.held != nullptr) {
        write_sums(held, memory, all.parts + part * p.K + at.first_class, classes);
    }
    if (p.log_sums != nullptr && at.first_class == 0) {
        __shared__ double sums[kWarps];
        log_sum = block_sum(lane == 0 ? log_sum : 0.0, sums);
        if (threadIdx.x == 0) all.log_parts[part] = log_sum;
    }
}

// Adds the parts of all blocks: a block handles 32 classes, each of its warps some of the parts.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int64_t blocks, int64_t K, int64_t total, double* held) {
    __shared__ double sums[kWarps][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t at = blockIdx.x * int64_t(32) + lane;
    double sum = 0;
    if (at < total) {
        const float* const part = parts + at / K * blocks * K + at % K;
#pragma unroll 8
        for (int64_t block = warp; block < blocks; block += kWarps) {
            sum += double(part[block * K]);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || at >= total) return;
    for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
    held[at] += sum;
}

// One block per task.
__global__ void __launch_bounds__(kThreads)
    add_logs_kernel(const double* parts, int64_t blocks, double* sums) {
    __shared__ double warps[kWarps];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += parts[blockIdx.x * blocks + i];
    sum = block_sum(sum, warps);
    if (threadIdx.x == 0) sums[blockIdx.x] += sum;
}

// One warp per row: the largest classes, one after the other; of equal ones, the smaller number
// first.
__global__ void __launch_bounds__(kThreads) top_kernel(AssignParams p, const RowStats* stats) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const RowLogits logit{p, row};
    const RowStats own = stats[row];
    float before = INFINITY;
    int64_t before_class = -1;
    for (int64_t rank = 0; rank < p.top; ++rank) {
        float best = kNothing;
        int label = 0x7fffffff;
        for (int64_t k = lane; k < p.K; k += 32) {
            const float value = logit(k);
            const bool left = value < before || (value == before && k > before_class);
            if (left && value > best) {
                best = value;
                label = int(k);
            }
        }
        label = warp_argmax(best, label);
        best = warp_max(best);
        if (lane == 0) {
            p.top_classes[row * p.top + rank] = label;
            floats(p.top_probabilities)[row * p.top + rank] = expf(best - own.most) * own.share;
        }
        before = best;
        before_class = label;
    }
}

// One warp per row: the lead of the nearest class over the median one in squared distance, and the
// distance of the median one minus the square of the row.
__global__ void __launch_bounds__(kThreads) leads_kernel(AssignParams p, double* parts) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const RowLogits logit{p, row};
    float* const behind = floats(p.products, row * p.stride);
    float best = kNothing;
    for (int64_t k = lane; k < p.K; k += 32) best = fmaxf(best, logit(k));
    best = warp_max(best);
    for (int64_t k = lane; k < p.K; k += 32) behind[k] = 2.0f * (best - logit(k));
    __syncwarp();
    const float lead = warp_select_rank<32>(behind, p.K, p.K / 2);
    if (lane == 0) {
        parts[row / p.N * 2 * p.N + logit.q] = double(lead);
        parts[(row / p.N * 2 + 1) * p.N + logit.q] = double(lead) - 2.0 * double(best);
    }
}

template <typename Written>
void launch_assign(const AssignParams& p, const RowsWorkspace& all, cudaStream_t stream) {
    auto* const stats = p.K > kTile ? static_cast<RowStats*>(all.stats) : nullptr;
    const int64_t row_warps = row_blocks(p.B * p.N);
    if (stats != nullptr) {
        launch("stats_kernel", stats_kernel, row_warps, kThreads, 0, stream, p, stats);
        if (p.top > 0) launch("top_kernel", top_kernel, row_warps, kThreads, 0, stream, p, stats);
    }
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        const auto kernel = assign_kernel<S::kVectors, S::kWidth, Written>;
        const size_t line = Staged<S::kVectors, S::kWidth>::kLine * sizeof(float);
        launch("assign_kernel", kernel, all.grid(), kThreads, kWarps * line, stream, p, all, stats);
    });
}

// --- counts of classes from likelihoods of rows that are kept, in half precision -----------------

__global__ void __launch_bounds__(kThreads) row_sums_kernel(CountParams p, float* shares) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N || is_stopped(p, row / p.N)) return;
    const __half* const a = static_cast<const __half*>(p.likelihood) + row * p.K;
    const float* const g = floats(p.weights, row / p.N * p.K);
    float sum = 0;
    for (int64_t k = threadIdx.x % 32; k < p.K; k += 32) sum += to_float(a[k]) * g[k];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shares[row] = sum;
}

template <int kVectors, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    count_kernel(CountParams p, RowsWorkspace all, const float* sums) {
    constexpr int kLine = 32 * kVectors * kWidth;
    __shared__ float staged[kWarps * kLine];
    const Place at{p.N, p.K, all.rows};
    if (is_stopped(p, at.task)) return;  // what is added then is not used
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t end = min(p.N, at.first_row + all.rows);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    const float* const weights = floats(p.weights, at.task * p.K + at.first_class);
    float held[kVectors][kWidth] = {};
    int faint = 0;
    for (int64_t q = at.first_row + warp; q < end; q += kWarps) {
        const int64_t row = at.task * p.N + q;
        const __half* const a =
            static_cast<const __half*>(p.likelihood) + row * p.K + at.first_class;
        float value[kVectors][kWidth], sum = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            Some<kWidth, __half> likelihood{};
            Some<kWidth> weight{};
            if (k < classes) {
                likelihood = load<kWidth>(a + k);
                weight = load<kWidth>(weights + k);
            }
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                value[i][j] = to_float(likelihood.x[j]) * weight.x[j];
                sum += value[i][j];
            }
        }
        sum = sums == nullptr ? warp_sum(sum) : sums[row];
        faint += sum < float(kFaintRow);
        const float share = sum > 0 ? 1.0f / sum : 0.0f;
        each_class<kVectors, kWidth>(
            [&](int i, int j) { held[i][j] = fmaf(value[i][j], share, held[i][j]); });
    }
    const int64_t part = at.task * all.blocks + at.block;
    write_sums(held, staged, all.parts + part * p.K + at.first_class, classes);
    if (at.first_class != 0) return;
    __shared__ double counts[kWarps];
    const double rows = block_sum(lane == 0 ? double(faint) : 0.0, counts);
    if (threadIdx.x == 0) all.log_parts[part] = rows;
}

}  // namespace

void add_parts(const RowsWorkspace& all, double* held, cudaStream_t stream) {
    launch("add_parts_kernel", add_parts_kernel, ceil_div(all.B * all.K, 32), kThreads, 0, stream,
           all.parts, all.blocks, all.K, all.B * all.K, held);
}

void add_logs(const double* parts, int64_t lines, int64_t length, double* sums,
              cudaStream_t stream) {
    launch("add_logs_kernel", add_logs_kernel, lines, kThreads, 0, stream, parts, length, sums);
}

int64_t workspace_cuda(const AssignParams& p) {
    return RowsWorkspace{Arena(), p.B, p.N, p.K}.arena.used();
}

void run_cuda(const AssignParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "products on CUDA must be float32 for the native code");
    require(p.K < (int64_t(1) << 31), "num_classes must be fewer than 2^31, got ", p.K);
    const RowsWorkspace all{Arena(p.workspace), p.B, p.N, p.K};
    require_workspace(p.workspace_bytes, all.arena.used());
    if (p.probabilities != nullptr || p.held != nullptr || p.log_sums != nullptr || p.top > 0) {
        const bool halves = p.written == DType::kFloat16;
        halves ? launch_assign<__half>(p, all, stream) : launch_assign<float>(p, all, stream);
        if (p.held != nullptr) add_parts(all, p.held, stream);
        if (p.log_sums != nullptr) {
            add_logs(all.log_parts, p.B, all.blocks, p.log_sums, stream);
        }
    }
    if (p.leads != nullptr) {
        launch("leads_kernel", leads_kernel, row_blocks(p.B * p.N), kThreads, 0, stream, p,
               all.log_parts);
        add_logs(all.log_parts, 2 * p.B, p.N, p.leads, stream);
    }
}

int64_t workspace_cuda(const CountParams& p) {
    return RowsWorkspace{Arena(), p.B, p.N, p.K}.arena.used();
}

void run_cuda(const CountParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat16, "likelihood on CUDA must be float16");
    const RowsWorkspace all{Arena(p.workspace), p.B, p.N, p.K};
    require_workspace(p.workspace_bytes, all.arena.used());
    float* sums = nullptr;
    if (p.K > kTile) {
        sums = floats(all.stats);
        launch("row_sums_kernel", row_sums_kernel, row_blocks(p.B * p.N), kThreads, 0, stream, p,
               sums);
    }
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        launch("count_kernel", count_kernel<S::kVectors, S::kWidth>, all.grid(), kThreads, 0,
               stream, p, all, sums);
    });
    add_parts(all, p.held, stream);
    add_logs(all.log_parts, p.B, all.blocks, p.faint, stream);
}

}  // namespace paddle_ext
