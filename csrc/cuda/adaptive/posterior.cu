// `posterior` on CUDA; the algebra is in common/adaptive.h.
//
// Queries into the coordinates; one product with the rows of the likelihood and with one another;
// with a full metric, z of the queries and their products; `adapt`; products with weighted sums of
// queries, from the query-query products; the absorb step.

#include "cuda/adaptive/factor.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The likelihood of a task.
__device__ int64_t likelihood_of(const PosteriorParams& p, int64_t task) {
    return p.size.L == 1 ? 0 : task;
}

// A call, the arrays of all tasks in its workspace, and the calls that use them.
struct PosteriorPlan {
    PosteriorParams p;
    SharedArena arena{p.workspace};
    int64_t B = p.size.B, Q = p.size.Q, K = p.size.K, D = p.size.D;
    // [B, Q, D'] times the root of the scale
    __half* x = arena.take<__half>(B * Q * row_halves(D));
    float* cross = arena.take<float>(B * Q * K);   // [B, Q, K] products of queries and prototypes
    float* logits = arena.take<float>(B * Q * K);  // [B, Q, K] not needed after the proportions:
    float* inner = logits;                         // products of queries and their weighted sums
    float* gram = arena.take<float>(B * Q * Q);    // [B, Q, Q] queries with one another
    float* given = arena.take<float>(B * Q * K);   // [B, Q, K] probabilities before the step
    // [B, Q, M'] by rows products with offsets; then split
    float* z = arena.take<float>(B * Q * factor_columns(p.size.M));
    float* own = arena.take<float>(B * Q);             // [B, Q] queries with themselves
    float* class_sums = arena.take<float>(B * 2 * K);  // [B, 2, K]
    AdaptParams adapt = adapt_of<float>(p);
    CoordinatesParams coordinates{};

    explicit PosteriorPlan(const PosteriorParams& call) : p(call) {
        coordinates.B = B, coordinates.N = Q, coordinates.D = D;
        coordinates.shared = p.size.L == 1, coordinates.dtype = p.dtype;
        coordinates.rows = p.query, coordinates.centre = p.centre, coordinates.scale = p.scale;
        coordinates.x = x, coordinates.split = true, coordinates.finite = p.finite;
        adapt.logits = logits, adapt.probabilities = given;
        adapt.workspace_bytes = workspace_cuda(adapt);
        adapt.workspace = arena.take<char>(adapt.workspace_bytes);
    }
};

// --- the absorb step ----------------------------------------------------------------------------
//
// Prototypes absorb the queries, each query classified without itself: one block per task. First
// products with weighted sums of queries, in tiles, which have a kernel of their own if there are
// many; then sums over the queries; then one warp per query.

// One task.
struct Step {
    const PosteriorPlan& plan;
    int64_t task;
    const PosteriorParams& p = plan.p;
    int64_t Q = plan.Q, K = plan.K, at = task * Q * K, shared = likelihood_of(p, task);
    const float *given = plan.given + at, *cross = plan.cross + at, *inner = plan.inner + at;
    const float* own = plan.own + task * Q;
    const float* added = p.added == nullptr ? nullptr : floats(p.added, at);
    const float* shots = floats(p.shots, shared* K);
    const float* squares = floats(p.squares, shared* K);
    const float* bias = floats(p.bias, task* K);
    const float* proportions = floats(p.proportions, task* K);
    const float* measure = chosen_measure<float>(p, task);  // null: 1 for all classes
    float sharpness = floats(p.sharpness)[task], prior = floats(p.concentration)[task];
    float variance = floats(p.variance)[shared], mean_shots = float(p.mean_shots);
    float share = absorb_share(prior), count = total_count(p.weight, Q, K, prior);
    float two_classes = chance_of_two_classes(prior, K);
    float weight = float(p.weight), trust = float(trust_of(Q, K)), temper = float(p.temper);
    float *square = plan.class_sums + task * 2 * K, *mass = square + K;
};

// A class, as needed by the rows of all queries.
struct StepClass {
    float shots, square, mass, total, prior, constant;

    __device__ StepClass() {}
    __device__ StepClass(const Step& s, int64_t k)
        : shots(s.shots[k]), square(s.square[k]), mass(s.mass[k]),
          prior(s.measure == nullptr ? s.prior : s.prior * s.measure[k]) {
        const float early = excess_distance(s.variance, shots, s.mean_shots, s.K);
        const float late = excess_distance(s.variance, mass, mass + (s.mean_shots - shots), s.K);
        const float hub = s.bias[k] + 0.5f * s.sharpness * (s.squares[k] - early + late);
        const float before = fmaxf(s.proportions[k] * s.count - prior, 0.0f);
        const float kept = kept_share(before, shots, s.two_classes);
        constant = s.share * hub + logf(kept);
        prior /= kept;
        total = before + prior;
    }

    __device__ float logit(const Step& s, int64_t at, float own) const {
        const float u = s.given[at], w = query_weight(u, s.trust);
        const float half = half_distance(w, shots * s.cross[at], s.inner[at], own, square, mass);
        float z = s.sharpness * half;
        if (s.added != nullptr) z += s.added[at];
        return s.temper * (s.share * z + constant + logf(fmaxf(total - s.weight * u, prior)));
    }
};

// Probabilities and labels of the queries of a warp. Their classes are held in kHeld registers per
// lane; with 0, rows go through memory.
template <int kHeld>
__device__ void write_queries(const Step& s, float* out, int64_t* labels) {
    constexpr int kKept = kHeld > 0 ? kHeld : 1;
    const int lane = threadIdx.x % 32;
    const int64_t K = s.K;
    StepClass classes[kKept];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        if (lane + 32 * i < K) classes[i] = StepClass(s, lane + 32 * i);
    }
    for (int64_t q = threadIdx.x / 32; q < s.Q; q += kWarps) {
        float kept[kKept], most = Range<float>::kMinusInfinity, sum = 0, best = -1.0f;
        int label = 0;
        const float own = s.own[q];
        // Calls body(k, value, i) for the classes of the lane; the value persists between calls.
        const auto each = [&](const auto& body) {
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                if (lane + 32 * i < K) body(lane + 32 * i, kept[i], i);
            }
            for (int64_t k = lane; kHeld == 0 && k < K; k += 32) body(k, out[q * K + k], 0);
        };
        each([&](int64_t k, float& value, int i) {
            const int64_t at = q * K + k;
            value = (kHeld > 0 ? classes[i] : StepClass(s, k)).logit(s, at, own);
            most = fmaxf(most, value);
        });
        most = warp_max(most);
        each([&](int64_t, float& value, int) {
            value = expf(value - most);
            sum += value;
        });
        const float share = 1.0f / warp_sum(sum);
        each([&](int64_t k, float& value, int) {
            const float u = value * share;
            out[q * K + k] = u;
            if (u > best) {
                best = u;
                label = int(k);
            }
        });
        label = warp_argmax(best, label);
        if (lane == 0) labels[q] = label;
    }
}

constexpr int kInnerRows = 80;     // queries per block, ...
constexpr int kInnerDepth = 32;    // ... others at a time, ...
constexpr int kInnerClasses = 64;  // ... and classes, two for each lane
constexpr int kInnerHeld = kInnerRows / kWarps;

// A tile of inner = gram W, where W holds the weights of the queries in the classes, and the diagonal
// of the Gram matrix.
__device__ void find_inner(const PosteriorPlan& p, int64_t task, int64_t tile) {
    __shared__ __align__(16) float gram[kInnerRows][kInnerDepth];
    __shared__ float weights[kInnerDepth][kInnerClasses];
    const int64_t Q = p.Q, K = p.K, tiles = ceil_div(K, int64_t(kInnerClasses));
    const int64_t row0 = tile / tiles * kInnerRows, class0 = tile % tiles * kInnerClasses;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t weighed = class0 + threadIdx.x % kInnerClasses;  // for this thread
    const float trust = float(trust_of(Q, K));
    const float* const all = p.gram + task * Q * Q;
    const float* const given = p.given + task * Q * K;
    float sum[kInnerHeld][2] = {};
    for (int64_t first = 0; first < Q; first += kInnerDepth) {
        __syncthreads();  // the previous tiles have been read
#pragma unroll
        for (int i = 0; i < kInnerHeld; ++i) {
            const int64_t q = row0 + warp + i * kWarps, other = first + lane;
            const bool there = q < Q && other < Q;
            const float value = there ? all[q * Q + other] : 0.0f;
            gram[warp + i * kWarps][lane] = value;
            if (there && q == other) p.own[task * Q + q] = value;
        }
#pragma unroll
        for (int i = threadIdx.x / kInnerClasses; i < kInnerDepth; i += kThreads / kInnerClasses) {
            const bool there = first + i < Q && weighed < K;
            const float u = there ? given[(first + i) * K + weighed] : 0.0f;
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
            if (q < Q && k < K) p.inner[(task * Q + q) * K + k] = sum[i][c];
        }
    }
}

__host__ __device__ int64_t inner_tiles(const PosteriorPlan& p) {
    return ceil_div(p.Q, int64_t(kInnerRows)) * ceil_div(p.K, int64_t(kInnerClasses));
}

constexpr int64_t kFewTiles = 4;  // a block of the step itself finds as many

// One block per tile.
__global__ void __launch_bounds__(kThreads) inner_kernel(PosteriorPlan p) {
    const int64_t tiles = inner_tiles(p);
    find_inner(p, blockIdx.x / tiles, blockIdx.x % tiles);
}

// Sums over the queries: kTiles tiles of 32 classes at a time, some of the queries for each warp.
template <int kTiles>
__device__ void sum_queries(const Step& s) {
    __shared__ float parts[2][kWarps][32 * kTiles];
    const int64_t Q = s.Q, K = s.K;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t first = 0; first < K; first += 32 * kTiles) {
        float shots[kTiles], square[kTiles] = {}, mass[kTiles] = {};
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const int64_t k = min(first + 32 * i + lane, K - 1);  // those beyond K are ignored
            shots[i] = s.shots[k];
        }
        for (int64_t q = warp; q < Q; q += kWarps) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
                const int64_t at = q * K + min(first + 32 * i + lane, K - 1);
                const float w = query_weight(s.given[at], s.trust);
                square[i] += w * (2 * shots[i] * s.cross[at] + s.inner[at]);
                mass[i] += w;
            }
        }
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            parts[0][warp][32 * i + lane] = square[i];
            parts[1][warp][32 * i + lane] = mass[i];
        }
        __syncthreads();
        for (int64_t at = threadIdx.x; at < 32 * kTiles && first + at < K; at += kThreads) {
            const int64_t k = first + at;
            float all = s.shots[k] * s.shots[k] * s.squares[k], count = s.shots[k];
            for (int other = 0; other < kWarps; ++other) {
                all += parts[0][other][at];
                count += parts[1][other][at];
            }
            s.square[k] = all;
            s.mass[k] = count;
        }
        __syncthreads();
    }
}

// How much of the batch each class is; see class_share. `square` and `mass` are not needed any more.
__device__ void write_shares(const Step& s, const float* u, const int64_t* labels, float* shares) {
    const int K = int(s.K);
    int labelled = 0;  // classes with a label
    for (int first = 0; first < K; first += kThreads) {
        const int k = first + int(threadIdx.x);
        double held = 0;
        float counted = 0;
#pragma unroll 1
        for (int64_t q = 0; k < K && q < s.Q; ++q) {
            held += double(u[q * K + k]);
            counted += float(labels[q] == k);
        }
        if (k < K) s.square[k] = counted, s.mass[k] = float(held);
        labelled += __syncthreads_count(counted > 0);
    }
    for (int k = threadIdx.x; k < K; k += kThreads) {
        shares[k] = class_share(s.square[k], s.mass[k], float(labelled) / float(K), s.Q);
    }
}

template <int kHeld>
__global__ void __launch_bounds__(kThreads) absorb_kernel(PosteriorPlan plan) {
    const Step s{plan, blockIdx.x};
    for (int64_t tile = 0; inner_tiles(plan) <= kFewTiles && tile < inner_tiles(plan); ++tile) {
        find_inner(plan, s.task, tile);
    }
    __syncthreads();
    sum_queries<(kHeld > 0 ? kHeld : 4)>(s);
    float* const out = floats(s.p.probabilities, s.at);
    int64_t* const labels = s.p.labels + s.task * s.Q;
    write_queries<kHeld>(s, out, labels);
    __syncthreads();  // all probabilities are written, and the proportions have been read
    write_shares(s, out, labels, floats(s.p.proportions, s.task * s.K));
}

void launch_absorb_step(const PosteriorPlan& p, cudaStream_t stream) {
    const auto kernel = p.K <= 64    ? absorb_kernel<2>
                        : p.K <= 160 ? absorb_kernel<5>
                        : p.K <= 256 ? absorb_kernel<8>
                                     : absorb_kernel<0>;
    const int64_t tiles = inner_tiles(p);
    if (tiles > kFewTiles) {
        launch("inner_kernel", inner_kernel, p.B * tiles, kThreads, 0, stream, p);
    }
    launch("absorb_kernel", kernel, p.B, kThreads, 0, stream, p);
}

// --- products -----------------------------------------------------------------------------------

// Queries with the rows of the likelihood and with one another, in the feature scale.
struct ScaledProducts : RowProducts {
    PosteriorPlan plan;

    __device__ const __half* column(int64_t task, int64_t c) const {
        const int64_t N = columns - rows;
        return c < N ? right + (likelihood_of(plan.p, task) * N + c) * 2 * depth : row(task, c - N);
    }
    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = plan.K, M = plan.p.size.M, N = plan.p.size.N, k = c - (N - K);
        const int64_t at = task * rows + q, likelihood = likelihood_of(plan.p, task);
        const float plain = M > 0 ? floats(plan.p.shares)[3 * likelihood + 1] : 1.0f;
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
        const float f = floats(plan.p.sharpness)[task],
                    bias = floats(plan.p.bias)[task * plan.K + k];
        const float* const added = floats(plan.p.added);
        return fmaf(f, cross, bias) + (added == nullptr ? 0.0f : added[at * plan.K + k]);
    }
};

// Adds the part of the full metric: z of the queries with z of the classes and with one another.
struct SolvedProducts : ScaledProducts {
    __device__ void store(int64_t task, int64_t q, int64_t c, float value) const {
        const int64_t K = plan.K, at = task * rows + q, likelihood = likelihood_of(plan.p, task);
        const float more = value * floats(plan.p.shares)[3 * likelihood + 2];
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
    const PosteriorParams& p = next.plan.p;
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

int64_t workspace_cuda(const PosteriorParams& p) { return PosteriorPlan(p).arena.used(); }

void run_cuda(const PosteriorParams& p, cudaStream_t stream) {
    const auto [B, Q, K, D, M, N, L] = p.size;
    require(p.dtype == DType::kFloat32, "query on CUDA must be float32 for the native code");
    require(Q + N <= INT32_MAX / 2, "query must have fewer than 2^30 rows");
    require(K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", K);
    const PosteriorPlan plan(p);
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
    run_cuda(plan.adapt, stream);
    launch_absorb_step(plan, stream);
}

}  // namespace paddle_ext
