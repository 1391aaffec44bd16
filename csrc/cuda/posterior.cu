// `posterior` on CUDA; the algebra is in common/likelihood.h.
//
// Queries into the coordinates; one product with the weights and with one another; `adapt`;
// products with weighted sums of queries, from the query-query products; the late step.

#include <type_traits>

#include "common/check.h"
#include "common/labelled.h"
#include "common/likelihood.h"
#include "common/params.h"
#include "common/rows.cuh"
#include "common/step.h"
#include "cuda/split_product.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Arrays of all tasks in the workspace, and the calls that use them.
struct PosteriorPlan {
    CoordinatesParams coordinates{};
    AdaptParams adapt{};
    StepParams step{};
    float* x;                              // [B, Q, D]
    float *cross, *logits, *gram, *given;  // [B, Q, K], gram [B, Q, Q]
    float *inner, *own;                    // [B, Q, K], [B, Q]
    float *constant, *total, *factor;      // [B, K], [B, K], [B]
    bool aligned;
    int64_t bytes;

    explicit PosteriorPlan(const PosteriorParams& p) {
        SharedArena arena(p.workspace);
        const int64_t B = p.B, Q = p.Q, K = p.K, D = p.D;
        x = arena.take<float>(B * Q * D);
        cross = arena.take<float>(B * Q * K);
        logits = arena.take<float>(B * Q * K);
        inner = logits;  // the logits are not needed after the proportions
        gram = arena.take<float>(B * Q * Q);
        given = arena.take<float>(B * Q * K);
        own = arena.take<float>(B * Q);
        constant = arena.take<float>(B * K);
        total = arena.take<float>(B * K);
        factor = arena.take<float>(B);
        coordinates.B = B, coordinates.N = Q, coordinates.D = D;
        coordinates.shared = p.shared, coordinates.dtype = p.dtype;
        coordinates.rows = p.query, coordinates.centre = p.centre;
        coordinates.x = x, coordinates.finite = p.finite;
        adapt.B = B, adapt.Q = Q, adapt.K = K, adapt.dtype = p.dtype;
        adapt.logits = logits;
        adapt.weight = p.weight, adapt.max_iter = p.max_iter, adapt.tol = p.tol;
        adapt.labels = p.labels, adapt.probabilities = given;
        adapt.proportions = p.proportions, adapt.dual = p.dual;
        adapt.iterations = p.iterations, adapt.criterion = p.criterion;
        adapt.concentration = p.concentration, adapt.bound = p.bound;
        adapt.workspace_bytes = workspace_cuda(adapt, 0);
        adapt.workspace = arena.take<char>(adapt.workspace_bytes);
        step.B = B, step.Q = Q, step.K = K, step.dtype = p.dtype;
        step.shared = p.shared, step.weight = p.weight, step.temper = p.temper;
        step.given = given, step.cross = cross, step.inner = inner, step.own = own;
        step.shots = p.shots, step.squares = p.squares;
        step.sharpness = factor, step.constant = constant, step.total = total;
        step.prior = p.concentration;
        step.probabilities = p.probabilities, step.labels = p.labels;
        step.workspace_bytes = workspace_cuda(step, 0);
        step.workspace = arena.take<char>(step.workspace_bytes);
        aligned = rows_aligned(p.dtype, D, {x, p.weights, p.scale});
        bytes = arena.used();
    }
};

__global__ void finite_kernel(bool* finite, int64_t B) {
    const int64_t task = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (task < B) finite[task] = true;
}

// Queries times the weights, then times the queries in the feature scale.
template <bool aligned>
struct QueriesProduct {
    static constexpr bool kAligned = aligned;
    PosteriorParams p;
    const float* x;
    float *cross, *logits, *gram;
    int64_t rows, columns, depth;

    struct Reader {
        static constexpr int kSlots = kProductSlots, kLoads = 2 * kSlots + 1;
        const QueriesProduct& of;
        int row0, column0;
        const float *queries, *weights, *scale;

        __device__ Reader(const QueriesProduct& of, int64_t task, int64_t row0, int64_t column0)
            : of(of), row0(int(row0)), column0(int(column0)),
              queries(of.x + task * of.rows * of.depth) {
            const int64_t likelihood = of.p.shared ? 0 : task;
            weights = static_cast<const float*>(of.p.weights) + likelihood * of.p.K * of.depth;
            scale = static_cast<const float*>(of.p.scale) + likelihood * of.depth;
        }

        __device__ static int place(int start, int slot) {
            return start + int(threadIdx.x) / 8 + slot * kRowsOfSlot;
        }

        // Queries, weights or queries, the feature scale. Values read for rows and columns beyond
        // the last are not stored.
        __device__ const float* source(int i) const {
            if (i == 2 * kSlots) return scale;
            if (i < kSlots) return queries + min(place(row0, i), int(of.rows) - 1) * of.depth;
            const int64_t c = min(place(column0, i - kSlots), int(of.columns) - 1);
            return c < of.p.K ? weights + c * of.depth : queries + (c - of.p.K) * of.depth;
        }

        template <typename In>
        __device__ float4 row(int i, int64_t, const In& in) const {
            return in(i);
        }

        template <typename In>
        __device__ float4 column(int i, int64_t, const In& in) const {
            const float4 a = in(kSlots + i), b = in(2 * kSlots);
            return place(column0, i) < of.p.K
                       ? a
                       : make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
        }

        __device__ void finish() const {}
    };

    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = p.K, likelihood = p.shared ? 0 : task;
        if (c >= K) {
            gram[(task * rows + q) * rows + c - K] = value;
            return;
        }
        const float f = static_cast<const float*>(p.sharpness)[likelihood];
        const float bias = static_cast<const float*>(p.bias)[likelihood * K + c];
        cross[(task * rows + q) * K + c] = value;
        logits[(task * rows + q) * K + c] = fmaf(f, value, bias);
    }
};

// Inputs of the late step of a task, from its proportions; one block per task.
__global__ void __launch_bounds__(kThreads) late_kernel(PosteriorParams p, PosteriorPlan plan) {
    const int64_t task = blockIdx.x, K = p.K, Q = p.Q, at = p.shared ? 0 : task;
    const float a = static_cast<const float*>(p.concentration)[task], share = late_share(a);
    const float f = static_cast<const float*>(p.sharpness)[at];
    const float mass = float(p.weight) * float(Q) + float(K) * a;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        const float bias = static_cast<const float*>(p.bias)[at * K + k];
        const float square = static_cast<const float*>(p.squares)[at * K + k];
        plan.total[task * K + k] = static_cast<const float*>(p.proportions)[task * K + k] * mass;
        plan.constant[task * K + k] = (bias + 0.5f * f * square) * share;
    }
    if (threadIdx.x == 0) plan.factor[task] = f * share;
    for (int64_t q = threadIdx.x; q < Q; q += kThreads) {
        plan.own[task * Q + q] = plan.gram[(task * Q + q) * Q + q];
    }
}

constexpr int kInnerRows = 80;     // queries per block, ...
constexpr int kInnerDepth = 32;    // ... others at a time, ...
constexpr int kInnerClasses = 64;  // ... and classes, two for each lane
constexpr int kInnerHeld = kInnerRows / kWarps;

// inner = gram W, where W holds the weights of the queries in the classes.
__global__ void __launch_bounds__(kThreads) inner_kernel(PosteriorParams p, PosteriorPlan plan) {
    __shared__ __align__(16) float gram[kInnerRows][kInnerDepth];
    __shared__ float weights[kInnerDepth][kInnerClasses];
    const int64_t Q = p.Q, K = p.K;
    const int64_t row_tiles = ceil_div(Q, int64_t(kInnerRows));
    const int64_t tiles = ceil_div(K, int64_t(kInnerClasses));
    const int64_t task = blockIdx.x / (row_tiles * tiles);
    const int64_t row0 = blockIdx.x / tiles % row_tiles * kInnerRows;
    const int64_t class0 = blockIdx.x % tiles * kInnerClasses;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t weighed = class0 + threadIdx.x % kInnerClasses;  // for this thread
    const float trust = float(trust_of(Q, K));
    float sum[kInnerHeld][2] = {};
    for (int64_t first = 0; first < Q; first += kInnerDepth) {
        __syncthreads();  // the previous tiles have been read
#pragma unroll
        for (int i = 0; i < kInnerHeld; ++i) {
            const int64_t q = row0 + warp + i * kWarps, other = first + lane;
            gram[warp + i * kWarps][lane] =
                q < Q && other < Q ? plan.gram[(task * Q + q) * Q + other] : 0.0f;
        }
#pragma unroll
        for (int i = threadIdx.x / kInnerClasses; i < kInnerDepth; i += kThreads / kInnerClasses) {
            const bool there = first + i < Q && weighed < K;
            const float u = there ? plan.given[(task * Q + first + i) * K + weighed] : 0.0f;
            weights[i][threadIdx.x % kInnerClasses] = query_weight(u, trust);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kInnerDepth; j += 4) {
            float w[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                w[i][0] = weights[j + i][lane];
                w[i][1] = weights[j + i][lane + 32];
            }
#pragma unroll
            for (int i = 0; i < kInnerHeld; ++i) {
                const float4 g = *reinterpret_cast<const float4*>(&gram[warp + i * kWarps][j]);
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    sum[i][c] += (g.x * w[0][c] + g.y * w[1][c]) + (g.z * w[2][c] + g.w * w[3][c]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kInnerHeld; ++i) {
        const int64_t q = row0 + warp + i * kWarps;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int64_t k = class0 + lane + 32 * c;
            if (q < Q && k < K) plan.inner[(task * Q + q) * K + k] = sum[i][c];
        }
    }
}

}  // namespace

int64_t workspace_cuda(const PosteriorParams& p, int) {
    PosteriorParams counted = p;
    counted.workspace = nullptr;
    return PosteriorPlan(counted).bytes;
}

void run_cuda(const PosteriorParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "query on CUDA must be float32 for the native code");
    require(p.Q + p.K <= INT32_MAX / 2, "query must have fewer than 2^30 rows");
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    const PosteriorPlan plan(p);
    finite_kernel<<<grid_size(ceil_div(p.B, int64_t(kThreads))), kThreads, 0, on>>>(p.finite, p.B);
    check_launch("finite_kernel");
    run_cuda(plan.coordinates, device, stream);
    const auto multiply = [&](auto aligned) {
        const QueriesProduct<aligned.value> product{p,         plan.x, plan.cross, plan.logits,
                                                    plan.gram, p.Q,    p.K + p.Q,  p.D};
        launch_split_product(product, p.B, "split_product_kernel of posterior", on);
    };
    plan.aligned ? multiply(std::true_type{}) : multiply(std::false_type{});
    run_cuda(plan.adapt, device, stream);
    late_kernel<<<grid_size(p.B), kThreads, 0, on>>>(p, plan);
    check_launch("late_kernel");
    const int64_t tiles =
        ceil_div(p.Q, int64_t(kInnerRows)) * ceil_div(p.K, int64_t(kInnerClasses));
    inner_kernel<<<grid_size(p.B * tiles), kThreads, 0, on>>>(p, plan);
    check_launch("inner_kernel");
    run_cuda(plan.step, device, stream);
}

}  // namespace paddle_ext
