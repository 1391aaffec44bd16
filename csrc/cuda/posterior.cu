// `posterior` on CUDA; the algebra is in common/likelihood.h.
//
// Queries into the coordinates; one product with the rows of the likelihood and with one another;
// with a full metric, z of the queries and their products; `adapt`; products with weighted sums of
// queries, from the query-query products; the late step.

#include "common/check.h"
#include "common/labelled.h"
#include "common/likelihood.h"
#include "common/params.h"
#include "common/rows.cuh"
#include "common/step.h"
#include "cuda/factor.cuh"
#include "cuda/tile_product.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Arrays of all tasks in the workspace, and the calls that use them.
struct PosteriorPlan {
    CoordinatesParams coordinates{};
    AdaptParams adapt{};
    StepParams step{};
    __half* x;                             // [B, Q, D'] times the root of the scale
    float *cross, *logits, *gram, *given;  // [B, Q, K], gram [B, Q, Q]
    float* z;                              // [B, Q, M'] by rows products with offsets; then split
    float *inner, *own;                    // [B, Q, K], [B, Q]
    int64_t bytes;

    explicit PosteriorPlan(const PosteriorParams& p) {
        SharedArena arena(p.workspace);
        const int64_t B = p.size.B, Q = p.size.Q, K = p.size.K, D = p.size.D;
        x = arena.take<__half>(B * Q * row_halves(D));
        cross = arena.take<float>(B * Q * K);
        logits = arena.take<float>(B * Q * K);
        inner = logits;  // the logits are not needed after the proportions
        gram = arena.take<float>(B * Q * Q);
        given = arena.take<float>(B * Q * K);
        z = arena.take<float>(B * Q * factor_columns(p.size.M));
        own = arena.take<float>(B * Q);
        coordinates.B = B, coordinates.N = Q, coordinates.D = D;
        coordinates.shared = p.size.L == 1, coordinates.dtype = p.dtype;
        coordinates.rows = p.query, coordinates.centre = p.centre, coordinates.scale = p.scale;
        coordinates.x = x, coordinates.split = true, coordinates.finite = p.finite;
        adapt.B = B, adapt.Q = Q, adapt.K = K, adapt.dtype = p.dtype;
        adapt.logits = logits;
        adapt.weight = p.weight, adapt.max_iter = p.max_iter, adapt.tol = p.tol;
        adapt.labels = p.labels, adapt.probabilities = given;
        adapt.proportions = p.proportions, adapt.dual = p.dual;
        adapt.iterations = p.iterations, adapt.criterion = p.criterion;
        adapt.concentration = p.concentration, adapt.bound = p.bound;
        adapt.priors = p.priors, adapt.measures = p.measures, adapt.chosen = p.chosen;
        adapt.workspace_bytes = workspace_cuda(adapt, 0);
        adapt.workspace = arena.take<char>(adapt.workspace_bytes);
        step.B = B, step.Q = Q, step.K = K, step.dtype = p.dtype;
        step.shared = p.size.L == 1, step.weight = p.weight, step.temper = p.temper;
        step.given = given, step.cross = cross, step.inner = inner, step.own = own;
        step.added = p.added;
        step.shots = p.shots, step.squares = p.squares;
        step.sharpness = p.sharpness, step.bias = p.bias;
        step.proportions = p.proportions, step.concentration = p.concentration;
        step.priors = p.priors, step.measures = p.measures, step.chosen = p.chosen;
        step.probabilities = p.probabilities, step.labels = p.labels;
        step.workspace_bytes = workspace_cuda(step, 0);
        step.workspace = arena.take<char>(step.workspace_bytes);
        bytes = arena.used();
    }
};

// The likelihood of a task.
__device__ int64_t likelihood_of(const PosteriorParams& p, int64_t task) {
    return p.size.L == 1 ? 0 : task;
}

// Queries with the rows of the likelihood and with one another, in the feature scale.
struct ScaledProducts : ProductSizes {
    PosteriorParams p;
    PosteriorPlan plan;

    __device__ float projected(int64_t task) const {
        return p.size.M == 0 ? 0.0f
                             : static_cast<const float*>(p.shares)[3 * likelihood_of(p, task) + 2];
    }
    __device__ bool needs(int64_t task, int64_t, int64_t, int64_t last_column) const {
        return last_column >= p.size.N - p.size.K || projected(task) != 0;
    }

    __device__ const __half* row(int64_t task, int64_t q) const {
        return plan.x + (task * rows + q) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const {
        const int64_t N = p.size.N;
        if (c >= N) return row(task, c - N);
        return static_cast<const __half*>(p.rows) + (likelihood_of(p, task) * N + c) * 2 * depth;
    }
    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = p.size.K, M = p.size.M, N = p.size.N, k = c - (N - K);
        const int64_t at = task * rows + q, likelihood = likelihood_of(p, task);
        const float plain = M > 0 ? static_cast<const float*>(p.shares)[3 * likelihood + 1] : 1.0f;
        if (c >= N) {
            plan.gram[at * rows + c - N] = plain * value;
        } else if (k < 0) {
            plan.z[at * factor_columns(M) + c] = value;
        } else {
            plan.cross[at * K + k] = plain * value;
            if (projected(task) == 0) plan.logits[at * K + k] = logit(task, at, k, plain * value);
        }
    }

    __device__ float logit(int64_t task, int64_t at, int64_t k, float cross) const {
        const float f = static_cast<const float*>(p.sharpness)[task];
        const float bias = static_cast<const float*>(p.bias)[task * p.size.K + k];
        const auto added = static_cast<const float*>(p.added);
        return fmaf(f, cross, bias) + (added == nullptr ? 0.0f : added[at * p.size.K + k]);
    }
};

// Adds the part of the full metric: z of the queries with z of the classes and with one another.
struct SolvedProducts : ScaledProducts {
    __device__ bool needs(int64_t task, int64_t, int64_t, int64_t) const {
        return projected(task) != 0;
    }

    __device__ const __half* row(int64_t task, int64_t q) const {
        return reinterpret_cast<const __half*>(plan.z) + (task * rows + q) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const {
        const int64_t K = p.size.K;
        if (c >= K) return row(task, c - K);
        return static_cast<const __half*>(p.solved) + (likelihood_of(p, task) * K + c) * 2 * depth;
    }

    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = p.size.K, at = task * rows + q;
        const float more = projected(task) * value;
        if (c >= K) {
            plan.gram[at * rows + c - K] += more;
            return;
        }
        const float cross = plan.cross[at * K + c] += more;
        plan.logits[at * K + c] = logit(task, at, c, cross);
    }
};

constexpr int kInnerRows = 80;     // queries per block, ...
constexpr int kInnerDepth = 32;    // ... others at a time, ...
constexpr int kInnerClasses = 64;  // ... and classes, two for each lane
constexpr int kInnerHeld = kInnerRows / kWarps;

// The diagonal of the Gram matrix, and inner = gram W, where W holds the weights of the queries in the classes.
__global__ void __launch_bounds__(kThreads) inner_kernel(PosteriorParams p, PosteriorPlan plan) {
    __shared__ __align__(16) float gram[kInnerRows][kInnerDepth];
    __shared__ float weights[kInnerDepth][kInnerClasses];
    const int64_t Q = p.size.Q, K = p.size.K;
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
            const bool there = q < Q && other < Q;
            const float value = there ? plan.gram[(task * Q + q) * Q + other] : 0.0f;
            gram[warp + i * kWarps][lane] = value;
            if (there && q == other) plan.own[task * Q + q] = value;
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

int64_t workspace_cuda(const PosteriorParams& p, int) { return PosteriorPlan(p).bytes; }

void run_cuda(const PosteriorParams& p, int device, void* stream) {
    const auto [B, Q, K, D, M, N, L] = p.size;
    require(p.dtype == DType::kFloat32, "query on CUDA must be float32 for the native code");
    require(Q + N <= INT32_MAX / 2, "query must have fewer than 2^30 rows");
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    const PosteriorPlan plan(p);
    fill_bytes(p.finite, 1, B, stream);
    run_cuda(plan.coordinates, device, stream);
    launch_product(ScaledProducts{{Q, N + Q, row_numbers(D)}, p, plan}, B, on);
    if (M > 0) {
        const int64_t pitch = factor_columns(M);
        const bool by_rows = N > K;
        const auto z = reinterpret_cast<__half*>(plan.z);
        const SolvedRows rows = by_rows ? SolvedRows{Q, plan.z, false, nullptr, pitch, z}
                                        : SolvedRows{Q, plan.x, true, nullptr, row_numbers(D), z};
        launch_solve(rows, p.factor, static_cast<const float*>(p.shares), M, B, L, on);
        launch_product(SolvedProducts{{{Q, K + Q, pitch}, p, plan}}, B, on);
    }
    run_cuda(plan.adapt, device, stream);
    const int64_t tiles = ceil_div(Q, kInnerRows) * ceil_div(K, kInnerClasses);
    launch("inner_kernel", inner_kernel, B * tiles, kThreads, 0, stream, p, plan);
    run_cuda(plan.step, device, stream);
}

}  // namespace paddle_ext
