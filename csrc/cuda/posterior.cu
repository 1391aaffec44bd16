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
        step.given = given, step.cross = cross, step.gram = gram, step.inner = inner,
        step.own = own;
        step.added = p.added;
        step.shots = p.shots, step.squares = p.squares;
        step.variance = p.variance, step.mean_shots = p.mean_shots;
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
            if (M == 0) plan.logits[at * K + k] = logit(task, at, k, plain * value);
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
        const float more =
            value * static_cast<const float*>(p.shares)[3 * likelihood_of(p, task) + 2];
        if (c >= K) {
            plan.gram[at * rows + c - K] += more;
            return;
        }
        const float cross = plan.cross[at * K + c] += more;
        plan.logits[at * K + c] = logit(task, at, c, cross);
    }
};

// Rows solved for with the factor. One block per tile of rows, which also finds their products if
// there is no other tile.
__global__ void __launch_bounds__(QueryTile::kThreads, 3)
    solve_kernel(SolvedRows rows, SolvedProducts next) {
    extern __shared__ __align__(128) char memory[];
    auto& s = *reinterpret_cast<FactorShared<QueryTile>*>(memory);
    const int64_t tiles = ceil_div(rows.count, QueryTile::kRows), task = blockIdx.x / tiles;
    const int64_t likelihood = likelihood_of(next.p, task), M = next.p.size.M;
    const int pitch = int(next.depth);
    const __half* const of_task =
        static_cast<const __half*>(next.p.factor) + likelihood * pitch * 2 * int64_t(pitch);
    const FactorTask<QueryTile> t{s, of_task, pitch};
    const TileRows mine = tile_rows<QueryTile>(rows, task, blockIdx.x % tiles, M, pitch);
    for (int column0 = 0; column0 < pitch; column0 += kSide) {
        for (int at = threadIdx.x; at < kSide * kSidePieces; at += QueryTile::kThreads) {
            copy_async16(shared_address(t.inverse(at)), of_task + t.place(column0, at), true);
        }
        t.solve_tile(mine, column0);  // waits for all copies
    }
    const int64_t columns = ceil_div(next.columns, int64_t(QueryTile::kColumns));
    for (int64_t tile = 0; tiles == 1 && tile < columns; ++tile) {
        find_tile<QueryTile>(next, task * columns + tile);
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
        const SolvedProducts products{{{Q, K + Q, pitch}, p, plan}};
        const int64_t tiles = ceil_div(Q, QueryTile::kRows);
        allow_all_shared(solve_kernel);
        launch("solve_kernel", solve_kernel, B * tiles, QueryTile::kThreads,
               sizeof(FactorShared<QueryTile>), stream, rows, products);
        if (tiles > 1) launch_product(products, B, on);
    }
    run_cuda(plan.adapt, device, stream);
    run_cuda(plan.step, device, stream);
}

}  // namespace paddle_ext
