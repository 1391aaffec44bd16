// Large tasks: explicit prototypes, every step spread over the whole GPU, four launches an iteration.
//
//   logits  = slope Z W^T + bias     tiled product, written where the probabilities will be
//   softmax of the rows, in place
//   W       = (S + U^T Z) / N        tiled product; also the sums over queries, ||w||^2 and ||dw||^2
//   finish  : dual, bias, criterion; a task that is done is skipped by all later launches
//
// Nothing larger than the probabilities is kept. Sums are taken in a fixed order, without atomics.
// Where prototypes stay, the logits without the dual are computed once and kept, the bias is the dual's
// alone, and the third launch counts what the classes hold.

#include "common/proportions.h"
#include "common/reduce.cuh"
#include "cuda/paddle_chunk.cuh"
#include "cuda/paddle_tiles.cuh"

namespace paddle_ext {

namespace {

// Sum over the block, in a fixed order; every thread gets it.
__device__ double block_sum(double value) {
    __shared__ double part[kWarps];
    value = warp_sum(value);
    __syncthreads();  // an earlier sum has been read by all
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0.0;
    for (int i = 0; i < kWarps; ++i) sum += part[i];
    return sum;
}

__device__ double block_max(double value) {
    __shared__ double part[kWarps];
    value = double(warp_max(float(value)));  // of numbers that are floats
    __syncthreads();                         // an earlier maximum has been read by all
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
    __syncthreads();
    double most = 0.0;
    for (int i = 0; i < kWarps; ++i) most = fmax(most, part[i]);
    return most;
}

// w = class means of the support, in scaled coordinates: one block per task and class.
__global__ void start_kernel(Chunk c) {
    const PaddleSizes& n = c.call.size;
    const int64_t at = blockIdx.x / n.K, k = blockIdx.x % n.K;
    const float inverse = 1.0f / safe_mass(c.count[n.support_shared ? k : at * n.K + k]);
    for (int64_t d = threadIdx.x; d < c.plan.Dp; d += blockDim.x) {
        const int64_t cell = (at * n.K + k) * c.plan.Dp + d;
        c.w[cell] = c.sums[cell] * inverse;
    }
}

// Bias at the start, with the factor of the scaling in the temperature. One block per task.
__global__ void __launch_bounds__(kThreads) start_bias_kernel(Chunk c, bool plain) {
    const PaddleSizes& n = c.call.size;
    const int64_t at = blockIdx.x, Dp = c.plan.Dp;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    double squared = ldexp(1.0, 2 * c.exponent[at]);
    if (!plain && c.call.scaling >= Scaling::kAuto) {
        double gap = 0.0, median = 0.0;
        for (int64_t q = threadIdx.x; q < n.Q; q += kThreads) {
            gap += double(c.gap[at * n.Q + q]);
            median += double(c.median[at * n.Q + q]);
        }
        squared =
            auto_factor_squared(block_sum(gap) / double(n.Q), block_sum(median) / double(n.Q));
        if (c.call.scaling == Scaling::kCalibrated) {
            const float sharpness = static_cast<const float*>(c.call.sharpness)[c.first + at];
            squared = calibrated_factor_squared(double(sharpness), squared);
        }
    }
    const float slope =
        plain ? 1.0f : float(folded_temperature<float>(c.call.temperature, squared));
    if (threadIdx.x == 0) {
        c.slope[at] = slope;
        c.unit[at] = c.call.update_prototypes ? sqrt(squared) : 1.0;
        c.done[at] = 0;
        c.concentration[at] = kFirstConcentration;
    }
    for (int64_t k = warp; k < n.K; k += kWarps) {
        float norm = 0.0f;
        for (int64_t d = lane; d < Dp; d += 32) {
            const float w = c.w[(at * n.K + k) * Dp + d];
            norm += w * w;
        }
        norm = warp_sum(norm);
        if (lane == 0) c.bias[at * n.K + k] = -0.5f * slope * norm;
    }
}

__global__ void __launch_bounds__(kThreads) logits_kernel(Chunk c) {
    __shared__ __align__(16) Tile tile;
    const PaddleSizes& n = c.call.size;
    const int64_t Dp = c.plan.Dp;
    const int64_t row_tiles = ceil_div(n.Q, int64_t(kGridTile));
    const int64_t column_tiles = ceil_div(n.K, int64_t(kGridTile));
    const int64_t at = blockIdx.x / (row_tiles * column_tiles);
    if (c.done[at]) return;
    const int64_t part = blockIdx.x % (row_tiles * column_tiles);
    const int64_t row0 = part / column_tiles * kGridTile, column0 = part % column_tiles * kGridTile;
    float result[8][8] = {}, unused[8] = {};
    tile_product(tile, {c.z + at * n.Q * Dp, Dp, row0, n.Q, Dp, false},
                 {c.w + at * n.K * Dp, Dp, column0, n.K, Dp, false}, result, unused);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const float slope = c.slope[at];
    float* const out = c.logits != nullptr
                           ? c.logits + at * n.Q * n.K
                           : static_cast<float*>(c.call.probabilities) + (c.first + at) * n.Q * n.K;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int64_t q = row0 + 8 * ty + r;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int64_t k = tile_column(column0, tx, i);
            if (q < n.Q && k < n.K) out[q * n.K + k] = slope * result[r][i] + c.bias[at * n.K + k];
        }
    }
}

// One warp per row.
__global__ void __launch_bounds__(kThreads) softmax_kernel(Chunk c) {
    const PaddleSizes& n = c.call.size;
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= c.tasks * n.Q || c.done[row / n.Q]) return;
    const int lane = threadIdx.x % 32;
    float* const x = static_cast<float*>(c.call.probabilities) + (c.first * n.Q + row) * n.K;
    if (c.logits != nullptr) {
        const float* const kept = c.logits + row * n.K;
        const float* const bias = c.bias + row / n.Q * n.K;
        for (int64_t k = lane; k < n.K; k += 32) x[k] = kept[k] + bias[k];
    }
    float best = Range<float>::kMinusInfinity, sum = 0.0f;
    for (int64_t k = lane; k < n.K; k += 32) best = fmaxf(best, x[k]);
    best = warp_max(best);
    for (int64_t k = lane; k < n.K; k += 32) {
        x[k] = expf(x[k] - best);
        sum += x[k];
    }
    const float inverse = 1.0f / warp_sum(sum);
    for (int64_t k = lane; k < n.K; k += 32) x[k] *= inverse;
}

// Lead of the nearest class and distance of the median one, of one row, for scaling="auto". The rows
// hold z.w - ||w||^2 / 2; one warp per row.
__global__ void __launch_bounds__(kThreads) gap_kernel(Chunk c) {
    const PaddleSizes& n = c.call.size;
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= c.tasks * n.Q) return;
    const int lane = threadIdx.x % 32;
    float* const x = static_cast<float*>(c.call.probabilities) + (c.first * n.Q + row) * n.K;
    float best = Range<float>::kMinusInfinity, own = 0.0f;
    for (int64_t k = lane; k < n.K; k += 32) best = fmaxf(best, x[k]);
    best = warp_max(best);
    for (int64_t d = lane; d < c.plan.Dp; d += 32) {
        const float z = c.z[row * c.plan.Dp + d];
        own += z * z;
    }
    own = warp_sum(own);
    // Squared distances less that of the nearest class.
    for (int64_t k = lane; k < n.K; k += 32) x[k] = 2.0f * (best - x[k]);
    __syncwarp();
    const float gap = warp_select_rank(x, n.K, n.K / 2);
    if (lane == 0) {
        c.gap[row] = gap;
        c.median[row] = own - 2.0f * best + gap;
    }
}

__global__ void __launch_bounds__(kThreads) update_kernel(Chunk c) {
    __shared__ __align__(16) Tile tile;
    const PaddleSizes& n = c.call.size;
    const int64_t Dp = c.plan.Dp, K = n.K;
    const int64_t row_tiles = ceil_div(K, int64_t(kGridTile));
    const int64_t column_tiles = ceil_div(Dp, int64_t(kGridTile));
    const int64_t at = blockIdx.x / (row_tiles * column_tiles);
    if (c.done[at]) return;
    const int64_t part = blockIdx.x % (row_tiles * column_tiles);
    const int64_t row0 = part / column_tiles * kGridTile, column0 = part % column_tiles * kGridTile;
    const float* const u = static_cast<float*>(c.call.probabilities) + (c.first + at) * n.Q * K;
    float result[8][8] = {}, held[8] = {};
    tile_product(tile, {u, K, row0, K, n.Q, true},
                 {c.z + at * n.Q * Dp, Dp, column0, Dp, n.Q, true}, result, held);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const float* const count = c.count + (n.support_shared ? 0 : at * K);
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int64_t k = row0 + 8 * ty + r;
        float shift = 0.0f, norm = 0.0f;
        if (k < K) {
            const float inverse = 1.0f / safe_mass(count[k] + held[r]);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int64_t d = tile_column(column0, tx, i);
                if (d >= Dp) continue;
                const int64_t cell = (at * K + k) * Dp + d;
                const float fresh = (c.sums[cell] + result[r][i]) * inverse;
                const float change = fresh - c.w[cell];
                c.w[cell] = fresh;
                shift += change * change;
                norm += fresh * fresh;
            }
        }
#pragma unroll
        for (int step = 8; step > 0; step /= 2) {
            shift += __shfl_xor_sync(kAllLanes, shift, step);
            norm += __shfl_xor_sync(kAllLanes, norm, step);
        }
        if (tx == 0 && k < K) {
            const int64_t slot = (at * K + k) * column_tiles + part % column_tiles;
            c.part_shift[slot] = shift;
            c.part_norm[slot] = norm;
            if (column0 == 0) c.held[at * K + k] = held[r];
        }
    }
}

// What each class holds, where prototypes stay, and by how much that changed. One block per task and 32
// classes: a lane adds up every eighth query of its class, then the eight sums.
__global__ void __launch_bounds__(kThreads) count_kernel(Chunk c) {
    __shared__ double part[kWarps][32];
    const PaddleSizes& n = c.call.size;
    const int64_t groups = ceil_div(n.K, int64_t(32));
    const int64_t at = blockIdx.x / groups;
    if (c.done[at]) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t k = blockIdx.x % groups * 32 + lane;
    const float* const u = static_cast<float*>(c.call.probabilities) + (c.first + at) * n.Q * n.K;
    double sum = 0.0;
    for (int64_t q = warp; k < n.K && q < n.Q; q += kWarps) sum += double(u[q * n.K + k]);
    part[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || k >= n.K) return;
    double held = 0.0;
    for (int i = 0; i < kWarps; ++i) held += part[i][lane];
    c.part_shift[at * n.K + k] = fabsf(float(held) - c.held[at * n.K + k]);
    c.held[at * n.K + k] = float(held);
}

// A Newton step of a learned prior, by the block of a task; every thread gets it.
__device__ void learn_prior(const Chunk& c, int64_t at, Proportions& proportions) {
    const int64_t K = c.call.size.K;
    double slope = 0.0, curvature = 0.0;
    proportions.concentration = c.concentration[at];
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        const PriorTerm term = class_term(double(c.held[at * K + k]), proportions.concentration);
        slope += term.slope;
        curvature += term.curvature;
    }
    slope = block_sum(slope);
    curvature = block_sum(curvature);
    proportions.learn(slope, curvature);
    if (threadIdx.x == 0) {
        c.concentration[at] = proportions.concentration;
        static_cast<float*>(c.call.concentration)[c.first + at] = float(proportions.concentration);
    }
}

// v-step, bias, criterion, and whether the task is done. One block per task.
__global__ void __launch_bounds__(kThreads) finish_kernel(Chunk c, int iteration) {
    const PaddleSizes& n = c.call.size;
    const int64_t at = blockIdx.x, task = c.first + at, K = n.K;
    if (c.done[at]) return;
    const int64_t column_tiles = ceil_div(c.plan.Dp, int64_t(kGridTile));
    const float slope = c.slope[at], weight = float(dual_weight<float>(c.call.lam, double(n.Q)));
    const float epsilon = fmaxf(float(c.call.epsilon), float(Range<float>::kMinEpsilon));
    const bool moving = c.call.update_prototypes;
    Proportions proportions(c.call);
    if (proportions.dirichlet) learn_prior(c, at, proportions);
    double shift_sum = 0.0, most = 0.0;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        float shift = 0.0f, norm = 0.0f;
        for (int64_t i = 0; moving && i < column_tiles; ++i) {
            shift += c.part_shift[(at * K + k) * column_tiles + i];
            norm += c.part_norm[(at * K + k) * column_tiles + i];
        }
        if (!moving) most = fmax(most, double(c.part_shift[at * K + k]));
        const float held = c.held[at * K + k];
        float proportion = held / float(n.Q), dual;
        if (proportions.dirichlet) {
            proportion = float(proportions.dirichlet_mean(double(held)));
            dual = float(proportions.dirichlet_dual(double(held)));
        } else {
            dual = 1.0f + logf(proportion + epsilon);
        }
        c.bias[at * K + k] = weight * dual - 0.5f * slope * norm;
        static_cast<float*>(c.call.proportions)[task * K + k] = proportion;
        static_cast<float*>(c.call.dual)[task * K + k] = dual;
        shift_sum += double(sqrtf(shift));
    }
    const double criterion =
        moving ? block_sum(shift_sum) * c.unit[at] / double(K) : block_max(most);
    if (threadIdx.x != 0) return;
    c.call.iterations[task] = iteration;
    static_cast<float*>(c.call.criterion)[task] =
        float(fmin(criterion, double(Range<float>::kInfinity)));
    c.done[at] = c.call.tol > 0.0 && criterion <= c.call.tol;
}

// One warp per row.
__global__ void __launch_bounds__(kThreads) labels_kernel(Chunk c) {
    const PaddleSizes& n = c.call.size;
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= c.tasks * n.Q) return;
    const int lane = threadIdx.x % 32;
    const int64_t at = c.first * n.Q + row;
    const float* const u = static_cast<const float*>(c.call.probabilities) + at * n.K;
    float best = -1.0f;
    int label = 0;
    for (int64_t k = lane; k < n.K; k += 32) {
        if (u[k] > best) {
            best = u[k];
            label = int(k);
        }
    }
    label = warp_argmax(best, label);
    if (lane == 0) c.call.labels[at] = label;
}

}  // namespace

void launch_grid(const Chunk& c) {
    const PaddleSizes& n = c.call.size;
    const int64_t q_tiles = ceil_div(n.Q, int64_t(kGridTile));
    const int64_t k_tiles = ceil_div(n.K, int64_t(kGridTile));
    const int64_t d_tiles = ceil_div(c.plan.Dp, int64_t(kGridTile));
    const unsigned products = grid_size(c.tasks * q_tiles * k_tiles);
    const unsigned updates = grid_size(c.tasks * k_tiles * d_tiles);
    const unsigned rows = grid_size(ceil_div(c.tasks * n.Q, int64_t(kWarps)));

    start_kernel<<<grid_size(c.tasks * n.K), kThreads, 0, c.stream>>>(c);
    check_launch("start_kernel");
    if (c.call.scaling >= Scaling::kAuto) {
        Chunk first = c;
        first.logits = nullptr;  // the distances go where the probabilities will be
        start_bias_kernel<<<grid_size(c.tasks), kThreads, 0, c.stream>>>(first, true);
        logits_kernel<<<products, kThreads, 0, c.stream>>>(first);
        gap_kernel<<<rows, kThreads, 0, c.stream>>>(first);
        check_launch("gap_kernel");
    }
    start_bias_kernel<<<grid_size(c.tasks), kThreads, 0, c.stream>>>(c, false);
    check_launch("start_bias_kernel");
    const bool moving = c.call.update_prototypes;
    if (!moving) {
        logits_kernel<<<products, kThreads, 0, c.stream>>>(c);
        check_launch("logits_kernel");
        const size_t bytes = sizeof(float) * c.tasks * n.K;
        check_cuda(cudaMemsetAsync(c.bias, 0, bytes, c.stream), "cudaMemsetAsync");
        check_cuda(cudaMemsetAsync(c.held, 0, bytes, c.stream), "cudaMemsetAsync");
    }
    const unsigned counts = grid_size(c.tasks * ceil_div(n.K, int64_t(32)));
    for (int iteration = 1; iteration <= c.call.max_iter; ++iteration) {
        if (moving) logits_kernel<<<products, kThreads, 0, c.stream>>>(c);
        softmax_kernel<<<rows, kThreads, 0, c.stream>>>(c);
        if (moving) {
            update_kernel<<<updates, kThreads, 0, c.stream>>>(c);
        } else {
            count_kernel<<<counts, kThreads, 0, c.stream>>>(c);
        }
        finish_kernel<<<grid_size(c.tasks), kThreads, 0, c.stream>>>(c, iteration);
        check_launch("finish_kernel");
    }
    labels_kernel<<<rows, kThreads, 0, c.stream>>>(c);
    check_launch("labels_kernel");
}

}  // namespace paddle_ext
