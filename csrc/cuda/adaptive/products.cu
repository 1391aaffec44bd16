// `products` on CUDA: queries into the coordinates; one product with the rows of the likelihood and
// with one another; with a full metric, z of the queries and their products. The metric is in
// common/adaptive.h.

#include "cuda/adaptive/factor.cuh"

namespace paddle_ext {

namespace {

// The likelihood of a task.
__device__ int64_t likelihood_of(const ProductsParams& p, int64_t task) {
    return p.size.L == 1 ? 0 : task;
}

// A call, the arrays of all tasks in its workspace, and the call that it makes.
struct ProductsPlan {
    ProductsParams p;
    SharedArena arena{p.workspace};
    int64_t B = p.size.B, Q = p.size.Q, K = p.size.K, D = p.size.D;
    // [B, Q, D'] times the root of the scale
    __half* x = arena.take<__half>(B * Q * row_halves(D));
    // [B, Q, M'] by rows products with offsets; then split
    float* z = arena.take<float>(B * Q * factor_columns(p.size.M));
    CoordinatesParams coordinates{};

    explicit ProductsPlan(const ProductsParams& call) : p(call) {
        coordinates.B = B, coordinates.N = Q, coordinates.D = D;
        coordinates.shared = p.size.L == 1, coordinates.dtype = p.dtype;
        coordinates.rows = p.query, coordinates.centre = p.centre, coordinates.scale = p.scale;
        coordinates.x = x, coordinates.split = true, coordinates.finite = p.finite;
    }
};

// Queries with the rows of the likelihood and with one another, in the feature scale.
struct ScaledProducts : RowProducts {
    ProductsPlan plan;

    __device__ const __half* column(int64_t task, int64_t c) const {
        const int64_t N = columns - rows;
        return c < N ? right + (likelihood_of(plan.p, task) * N + c) * 2 * depth : row(task, c - N);
    }
    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = plan.K, M = plan.p.size.M, N = plan.p.size.N, k = c - (N - K);
        const int64_t at = task * rows + q, likelihood = likelihood_of(plan.p, task);
        const float plain = M > 0 ? floats(plan.p.shares)[3 * likelihood + 1] : 1.0f;
        if (c >= N) {
            floats(plan.p.gram)[at * rows + c - N] = plain * value;
        } else if (k < 0) {
            plan.z[at * factor_columns(M) + c] = value;
        } else {
            floats(plan.p.cross)[at * K + k] = plain * value;
        }
    }
};

// Adds the part of the full metric: z of the queries with z of the classes and with one another.
struct SolvedProducts : ScaledProducts {
    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = plan.K, at = task * rows + q, likelihood = likelihood_of(plan.p, task);
        const float more = value * floats(plan.p.shares)[3 * likelihood + 2];
        if (c >= K) {
            floats(plan.p.gram)[at * rows + c - K] += more;
        } else {
            floats(plan.p.cross)[at * K + c] += more;
        }
    }
};

// Rows solved for with the factor. One block per tile of rows, which also finds their products if
// there is no other tile.
__global__ void __launch_bounds__(QueryTile::kThreads, 3)
    solve_kernel(SolvedRows rows, SolvedProducts next) {
    extern __shared__ __align__(128) char memory[];
    auto& s = *reinterpret_cast<FactorShared<QueryTile>*>(memory);
    const int64_t tiles = ceil_div(rows.count, QueryTile::kRows), task = blockIdx.x / tiles;
    const ProductsParams& p = next.plan.p;
    const int64_t likelihood = likelihood_of(p, task), M = p.size.M;
    const int pitch = int(next.depth);
    const __half* const of_task =
        static_cast<const __half*>(p.factor) + likelihood * pitch * 2 * int64_t(pitch);
    const FactorTask<QueryTile> t{s, of_task, pitch};
    const TileRows mine = tile_rows<QueryTile>(rows, task, blockIdx.x % tiles, M, pitch);
    for (int column0 = 0; column0 < pitch; column0 += kSide) {
        t.load_inverse(column0);
        t.solve_tile(mine, column0);
    }
    const int64_t columns = ceil_div(next.columns, int64_t(QueryTile::kColumns));
    for (int64_t tile = 0; tiles == 1 && tile < columns; ++tile) {
        find_tile<QueryTile>(next, task * columns + tile);
    }
}

}  // namespace

int64_t workspace_cuda(const ProductsParams& p) { return ProductsPlan(p).arena.used(); }

void run_cuda(const ProductsParams& p, cudaStream_t stream) {
    const auto [B, Q, K, D, M, N, L] = p.size;
    require(p.dtype == DType::kFloat32, "query on CUDA must be float32 for the native code");
    require(Q + N <= INT32_MAX / 2, "query must have fewer than 2^30 rows");
    require(K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", K);
    const ProductsPlan plan(p);
    require_workspace(p.workspace_bytes, plan.arena.used());
    fill_bytes(p.finite, 1, B, stream);
    run_cuda(plan.coordinates, stream);
    const auto rows = static_cast<const __half*>(p.rows);
    launch_product(ScaledProducts{{Q, N + Q, row_numbers(D), plan.x, rows}, plan}, B, stream);
    if (M > 0) {
        const int64_t pitch = factor_columns(M);
        const bool by_rows = N > K;
        const auto z = reinterpret_cast<__half*>(plan.z);
        const SolvedRows solved = by_rows ? SolvedRows{Q, plan.z, false, 0, pitch, z}
                                          : SolvedRows{Q, plan.x, true, 0, row_numbers(D), z};
        const auto classes = static_cast<const __half*>(p.solved);
        const SolvedProducts products{{{Q, K + Q, pitch, z, classes}, plan}};
        const int64_t tiles = ceil_div(Q, QueryTile::kRows);
        allow_all_shared(solve_kernel);
        launch("solve_kernel", solve_kernel, B * tiles, QueryTile::kThreads,
               sizeof(FactorShared<QueryTile>), stream, solved, products);
        if (tiles > 1) launch_product(products, B, stream);
    }
}

}  // namespace paddle_ext
