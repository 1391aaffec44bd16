// `likelihood` on CUDA; the algebra is in common/adaptive.h.
//
// `labelled` writes no rows here. Then the means are written in the feature scale, and all offsets
// if the full metric is factorised by rows, else only the rows to be judged. Last come its factor,
// distances in both metrics, and calibration.

#include "cuda/adaptive/calibrate.cuh"
#include "cuda/adaptive/factor.cuh"
#include "cuda/adaptive/labelled.cuh"

namespace paddle_ext {

namespace {

// A call, the arrays of all tasks in its workspace, and the calls that use them.
struct LikelihoodPlan {
    LikelihoodParams p;
    SharedArena arena{p.workspace};
    int64_t B = p.B, K = p.K, D = p.D;
    int64_t J = p.every ? p.S : p.R;  // rows judged: all, or the calibration rows
    bool by_rows = p.full && p.S < D, by_features = p.full && !by_rows;  // see common/adaptive.h
    int64_t N = by_rows ? p.S : J, M = p.S < D ? p.S : D;  // rows of `cross`, numbers of z
    int64_t F = p.full ? B : 0;                            // tasks with a full metric
    // [B, J, D'] judged rows in the feature scale; unless by rows
    __half* judged = halves(by_rows ? 0 : B * J, D);
    // [B, J] judged rows with themselves; by rows [B, S] offsets
    float* of_rows = arena.take<float>(B * N);
    // [B, J, K] judged rows with means; by rows [B, S, K] offsets with means
    float* cross = arena.take<float>(B * N * K);
    // [B, J, K] distances in the feature scale, each row left out of its class
    float* base = by_rows ? arena.take<float>(B * J * K) : cross;
    // [B, K, K] by rows: means with means, the lower triangle
    float* means = arena.take<float>(by_rows ? B * K * K : 0);
    // By features: [B, J, D'] scaled offsets of the judges, [B, D, S'] all of them, transposed
    __half* away = halves(by_features ? B * J : 0, D);
    __half* turned = halves(by_features ? B * D : 0, p.S);
    // [B, J, M'] z of the judges
    __half* judges = halves(F * J, factor_columns(M));
    // [B, J + .., K] products of z of judges and of some classes with z of classes
    float* solved = arena.take<float>(F * (J + class_rows()) * K);
    float* full = arena.take<float>(F * J * K);  // [B, J, K] distances in the full metric
    float* own = arena.take<float>(B * 2 * J);   // [B, 2, J] to the own class, in both metrics
    float* excess = arena.take<float>(B * K);    // [B, K]    see excess_distance
    float* lengths = arena.take<float>(F * K);   // [B, K]    z of classes with themselves
    float* shrink = arena.take<float>(F);        // [B]       1 / kappa
    LabelledParams labelled = labelled_of<float>(p);
    CalibrateParams calibrate = calibrate_of<float>(p);
    Factor factor{B, p.S, K, M, floats(p.factor), arena.take<float>(F)};

    explicit LikelihoodPlan(const LikelihoodParams& call) : p(call) {
        labelled.finite = p.finite;
        labelled.first = arena.take<float>(B * p.S);
        labelled.second = arena.take<float>(B * p.S);
        labelled.own = arena.take<int64_t>(B * p.R);
        labelled.count = arena.take<int64_t>(B);
        labelled.workspace = arena.take<char>(workspace_cuda(labelled));
        calibrate.labels = labelled.own, calibrate.count = labelled.count;
        calibrate.objective = arena.take<float>(B);
        calibrate.drawn = arena.take<float>(B * K);
        calibrate.workspace = arena.take<char>(workspace_cuda(calibrate));
        factor.teams = arena.take<TeamMemory>(F);
        const int64_t pitch = by_rows ? factor_columns(M) : row_numbers(D);
        const auto z = static_cast<__half*>(p.solved);
        factor.classes = {K, by_rows ? p.solved : p.rows, !by_rows, nullptr, pitch, z};
        factor.judges = {J, by_rows ? nullptr : away, true, nullptr, pitch, judges};
    }

    __half* halves(int64_t rows, int64_t numbers) {
        return arena.take<__half>(rows * row_halves(numbers));
    }

    // Classes that are multiplied with all others: all, or with more classes than judges, those of
    // the judges.
    __host__ __device__ int64_t class_rows() const { return K <= J ? K : J; }
};

// Which labelled rows are judged, and their classes.
struct Judged {
    const int* rows;  // [B, J], or null for all
    const int64_t* labels;
    int64_t S, K, J;

    __device__ int row(int64_t task, int64_t j) const {
        return rows == nullptr ? int(j) : rows[task * J + j];
    }
    // The class of judge j; 0 for none.
    __device__ int own(int64_t task, int64_t j) const {
        const int s = row(task, j);
        return s < 0 ? 0 : max(load_label(labels + task * S, s, K), 0);
    }
};

// --- rows in the feature scale -------------------------------------------------------------------

// Four features from d on: the centre, and the roots of their scale.
struct Features {
    int64_t d;
    float4 centre, root;
};

// A labelled row and the mean of its class; or a mean alone; or neither.
struct LabelledRow {
    const float *x = nullptr, *mean = nullptr;
    float first = 0, second = 0;
};

// Rows times the root of the feature scale.
struct ScaledRows {
    LabelledParams p;
    bool aligned;

    __device__ float4 load(const float* row, int64_t d) const {
        return load_row4(row, d, p.D, aligned);
    }
    __device__ Features features(int64_t task, int64_t d) const {
        return {d, load(floats(p.centre, task * p.D), d),
                roots_approx(load(floats(p.scale, task * p.D), d))};
    }

    // A row without a class is none.
    __device__ LabelledRow row(int64_t task, int64_t s) const {
        const int k = s < 0 ? -1 : load_label(p.labels + task * p.S, s, p.K);
        if (k < 0) return {};
        const int64_t at = task * p.S + s;
        return {floats(p.support, at * p.D), mean(task, k).mean, floats(p.first)[at],
                floats(p.second)[at]};
    }
    __device__ LabelledRow mean(int64_t task, int64_t k) const {
        return {nullptr, floats(p.means, (task * p.K + k) * p.D)};
    }

    // Four numbers of a row, minus the mean of its class if `offset`; or of a mean; or zeros.
    __device__ float4 scaled(const LabelledRow& row, const Features& at, bool offset) const {
        if (row.mean == nullptr) return make_float4(0, 0, 0, 0);
        if (row.x == nullptr) return load(row.mean, at.d) * at.root;
        const float4 x = centred(load(row.x, at.d), row.first, at.centre) * row.second;
        return (offset ? x - load(row.mean, at.d) : x) * at.root;
    }
};

constexpr int kScaledRows = 2;  // of a warp, which share what it loads of the features
constexpr int kTurnedRows = 4;  // of a thread

// Blocks that scale the rows of a task.
__host__ __device__ inline int64_t scaled_blocks(int64_t rows) {
    return ceil_div(rows, kWarps * kScaledRows);
}

// By rows all offsets, else the judged rows and, for a full metric, their offsets; and the means.
// Also the squares of rows, or of offsets by rows, and of means.
__global__ void __launch_bounds__(kThreads, 4)
    scaled_kernel(ScaledRows from, LikelihoodPlan plan, Judged judged) {
    const LikelihoodParams& p = plan.p;
    const int64_t count = plan.N, all = count + p.K, pitch = row_halves(p.D);
    const unsigned blocks = unsigned(scaled_blocks(all));
    const int64_t task = blockIdx.x / blocks;
    const int64_t row0 = (blockIdx.x % blocks * kWarps + threadIdx.x / 32) * kScaledRows;
    __half* const rows = static_cast<__half*>(p.rows);
    LabelledRow row[kScaledRows];
    float square[kScaledRows] = {};
#pragma unroll
    for (int r = 0; r < kScaledRows; ++r) {
        const int64_t i = row0 + r;
        if (i < count) row[r] = from.row(task, plan.by_rows ? i : judged.row(task, i));
        if (i >= count && i < all) row[r] = from.mean(task, i - count);
    }
    for (int64_t d = 4 * (threadIdx.x % 32); d < row_numbers(p.D); d += 128) {
        const Features at = from.features(task, d);
#pragma unroll
        for (int r = 0; r < kScaledRows; ++r) {
            const int64_t i = row0 + r, judge = (task * count + i) * pitch;
            if (i >= all) break;
            const float4 x = from.scaled(row[r], at, plan.by_rows);
            square[r] += squared_norm(x);
            store_row4(plan.by_rows ? rows + (task * all + i) * pitch
                       : i < count  ? plan.judged + judge
                                    : rows + (task * p.K + i - count) * pitch,
                       d, x);
            if (!plan.by_features || i >= count) continue;
            store_row4(plan.away + judge, d, from.scaled(row[r], at, true));
        }
    }
#pragma unroll
    for (int r = 0; r < kScaledRows; ++r) {
        const float sum = warp_sum(square[r]);
        const int64_t i = row0 + r;
        if (threadIdx.x % 32 != 0 || i >= all) continue;
        (i < count ? plan.of_rows[task * count + i] : floats(p.squares)[task * p.K + i - count]) =
            sum;
    }
}

// All offsets, transposed: a block turns 128 x 32 numbers.
__global__ void __launch_bounds__(kThreads) turn_kernel(ScaledRows from, __half* turned) {
    constexpr int kRows = 32 * kTurnedRows;
    __shared__ float tile[32][kRows + 1];
    const int64_t S = from.p.S, D = from.p.D, pitch = row_halves(S);
    const unsigned tiles = unsigned(ceil_div(D, 32)), row_tiles = unsigned(ceil_div(S, kRows));
    const int64_t task = blockIdx.x / (row_tiles * tiles), d0 = blockIdx.x % tiles * 32;
    const int64_t row0 = blockIdx.x / tiles % row_tiles * int64_t(kRows);
    const int quad = threadIdx.x % 8, place = threadIdx.x / 8;
    const Features at = from.features(task, d0 + 4 * quad);
#pragma unroll
    for (int r = 0; r < kTurnedRows; ++r) {
        const int64_t s = row0 + place + 32 * r;
        const float4 value = from.scaled(from.row(task, s < S ? s : -1), at, true);
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[4 * quad + i][place + 32 * r] = (&value.x)[i];
    }
    __syncthreads();
    const int numbers = int(min(row_numbers(S) - row0, int64_t(kRows)));
    for (int i = threadIdx.x / 32; i < 32 && d0 + i < D; i += kWarps) {
        __half* const row = turned + (task * D + d0 + i) * pitch;
        for (int s = threadIdx.x % 32 * 2; s < numbers; s += 64) {
            store_row2(row, row0 + s, tile[i][s], tile[i][s + 1]);
        }
    }
}

// --- products ------------------------------------------------------------------------------------

// By rows: offsets and means with one another.
struct AllProducts : RowProducts {
    LikelihoodPlan plan;

    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        const int64_t S = plan.p.S, K = plan.K, k = r - S, pitch = factor_columns(S);
        if (k < 0) {
            floats(plan.p.factor)[(task * pitch + r) * pitch + c] = value;
        } else if (c < S) {
            floats(plan.p.solved)[(task * K + k) * pitch + c] = value;
            plan.cross[(task * S + c) * K + k] = value;
        } else {
            plan.means[(task * K + k) * K + c - S] = value;
        }
    }
};

// V^T V.
struct FeatureProducts : RowProducts {
    float* factor;

    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        const int64_t pitch = factor_columns(rows);
        factor[(task * pitch + r) * pitch + c] = value;
    }
};

// z of the judges, on the left, and of some classes, with z of all classes.
struct SolvedProducts : StoredProducts {
    int64_t J;
    Judged judged;

    __device__ const __half* row(int64_t task, int64_t r) const {
        if (r < J) return left + (task * J + r) * 2 * depth;
        return column(task, columns <= J ? r - J : judged.own(task, r - J));
    }
};

// --- distances -----------------------------------------------------------------------------------

// Squared distances of the judged rows, up to a constant per row, each left out of its class.
struct LeftOutDistances {
    LikelihoodPlan plan;
    Judged judged;
    const int* chosen;  // [B, R] the labelled row of a calibration row

    // The judge that is calibration row i.
    __device__ int64_t judge(int64_t task, int64_t i) const {
        return plan.p.every ? chosen[task * plan.p.R + i] : i;
    }

    // The product of two means.
    __device__ float of_means(int64_t task, int64_t a, int64_t b) const {
        return plan.means[(task * plan.p.K + max(a, b)) * plan.p.K + min(a, b)];
    }

    // Sums over the rows, by every block alike.
    __device__ void start(int64_t task) const {
        __shared__ double scratch[kMostCalibrateThreads / 32];
        double base = 0, other = 0, variance = 0;
        const int64_t count = plan.labelled.count[task];
        const float* const own = plan.own + task * 2 * plan.J;
        const float* const shots = floats(plan.p.shots, task * plan.p.K);
        for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
            const int64_t j = judge(task, i);
            const float n = shots[judged.own(task, j)];
            base += double(own[j]);
            variance += double(variance_by(own[j] / left_out_rate(n), n));
            if (plan.p.full) other += double(own[plan.J + j]);
        }
        const double rows = fmax(double(count), 1.0);
        const float each = float(block_sum(variance, scratch) / rows);
        if (threadIdx.x == 0) floats(plan.p.variance)[task] = each;
        for (int64_t k = threadIdx.x; k < plan.p.K; k += blockDim.x) {
            plan.excess[task * plan.p.K + k] =
                excess_distance(each, shots[k], float(plan.p.S) / float(plan.p.K), plan.p.K);
        }
        __syncthreads();
        if (!plan.p.full) return;
        base = block_sum(base, scratch) / rows + kNoScatter;
        other = block_sum(other, scratch) / rows + kNoScatter;
        if (threadIdx.x == 0) plan.shrink[task] = float(base / other);
        __syncthreads();
    }

    __device__ float squared_length(const __half* z, int64_t row) const {
        const int64_t M = factor_columns(plan.factor.M);
        float sum = 0;
        for (int64_t m = 4 * (threadIdx.x % 32); m < M; m += 128) {
            sum += squared_norm(load_row4(z + row * 2 * M, m));
        }
        return warp_sum(sum);
    }

    // By one warp, which loads all it can before it waits.
    __device__ void find_distances(int64_t task, int64_t j) const {
        const int lane = threadIdx.x % 32, own = judged.own(task, j);
        const bool full = plan.p.full, by_rows = plan.by_rows;
        const int64_t K = plan.p.K, J = plan.J, at = (task * J + j) * K,
                      s = max(judged.row(task, j), 0);
        const float* const squares = floats(plan.p.squares, task * K);
        const float shots = floats(plan.p.shots)[task * K + own];
        const float* const of_row = plan.cross + (by_rows ? (task * plan.p.S + s) * K : at);
        const auto cross = [&](int64_t k) {
            return by_rows ? of_means(task, own, k) + of_row[k] : of_row[k];
        };
        const float cross_own = cross(own);
        const float off = by_rows
                              ? plan.of_rows[task * plan.p.S + s]
                              : fmaxf(plan.of_rows[task * J + j] - 2 * cross_own + squares[own], 0);
        const float scatter = full ? plan.factor.scatter[task] : 1.0f;
        const float unit = by_rows ? -1.0f / scatter : 1.0f;
        const float* const along = plan.solved + (task * (J + plan.class_rows()) + j) * K;
        const float* const solved = along + (J - j + (K <= J ? own : j)) * K;  // of the own class
        const float along_own = full ? along[own] : 0.0f;
        const float length = full ? squared_length(plan.judges, task * J + j) : 0.0f;
        const float square = by_rows ? scatter * fmaxf(1.0f - length, 0.0f) : length;
        const LeftOutRow<float> row(shots, square, along_own, scatter);
        __syncwarp();  // the base distances may replace the products
#pragma unroll 2
        for (int64_t k = lane; k < K; k += 32) {
            const float plain = squares[k] - 2.0f * cross(k);
            if (full) {
                const float of_class =
                    unit * plan.lengths[task * K + k] + (by_rows ? squares[k] : 0.0f);
                const float between =  // the means of the own class and of another
                    unit * solved[k] + (by_rows ? of_means(task, own, k) : 0.0f);
                const float to_own = row.own - (square + 2.0f * along_own + of_class);
                plan.full[at + k] =
                    k == own ? to_own : row.distance(of_class, between + along[k], along[k]);
            }
            plan.base[at + k] = k == own ? plain + (left_out_rate(shots) - 1.0f) * off : plain;
        }
        if (lane != 0) return;
        plan.own[task * 2 * J + j] = left_out_rate(shots) * off;
        if (full) plan.own[(task * 2 + 1) * J + j] = row.own;
    }

    __device__ float mixed(int64_t task, int64_t j, int64_t k, float share) const {
        const int64_t at = (task * plan.J + j) * plan.p.K + k;
        const float base = plan.base[at];
        if (!plan.p.full) return base;
        return base + share * (plan.full[at] * plan.shrink[task] - base);
    }

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float share) const {
        return mixed(task, judge(task, i), k, share) - plan.excess[task * plan.p.K + k];
    }

    // What depends on the mixture.
    __device__ void finish(int64_t task, float sharpness, float share) const {
        __shared__ double scratch[kMostCalibrateThreads / 32];
        const int64_t K = plan.p.K;
        float plain = 1.0f, projected = 0.0f;
        if (plan.p.full) {
            const float part = share * plan.shrink[task];
            plain = 1.0f - share + (plan.by_rows ? part : 0.0f);
            projected = plan.by_rows ? -part / plan.factor.scatter[task] : part;
        }
        const float* const drawn = floats(plan.calibrate.drawn, task * K);
        double mean = 0;
        for (int64_t k = threadIdx.x; k < K; k += blockDim.x) mean += double(drawn[k]);
        mean = block_sum(mean, scratch) / double(K);
        const float rows = float(plan.labelled.count[task]) / float(K);
        for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
            float& square = floats(plan.p.squares)[task * K + k];
            if (plan.p.full) square = plain * square + projected * plan.lengths[task * K + k];
            floats(plan.p.bias)[task * K + k] =
                hub_bias(drawn[k], float(mean), rows) -
                0.5f * sharpness * (square - plan.excess[task * K + k]);
        }
        for (int64_t at = threadIdx.x; plan.p.every && at < plan.p.S * K; at += blockDim.x) {
            floats(plan.p.left_out)[task * plan.p.S * K + at] = mixed(task, at / K, at % K, share);
        }
        if (!plan.p.full || threadIdx.x != 0) return;
        float* const shares = floats(plan.p.shares, 3 * task);
        shares[0] = share, shares[1] = plain, shares[2] = projected;
    }
};

// One warp per class: lengths of z.
__global__ void __launch_bounds__(kThreads) lengths_kernel(LeftOutDistances d) {
    const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (row >= d.plan.B * d.plan.K) return;
    const float length = d.squared_length(d.plan.factor.classes.to, row);
    if (threadIdx.x % 32 == 0) d.plan.lengths[row] = length;
}

// One warp per judged row.
__global__ void __launch_bounds__(kThreads) distances_kernel(LeftOutDistances d) {
    const unsigned blocks = unsigned(ceil_div(d.plan.J, kWarps));
    const int64_t j = blockIdx.x % blocks * kWarps + threadIdx.x / 32;
    if (j < d.plan.J) d.find_distances(blockIdx.x / blocks, j);
}

struct GivenDistances {
    const float* distances;  // [B, R, K]
    int64_t R, K;

    __device__ void start(int64_t) const {}

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float) const {
        return distances[(task * R + i) * K + k];
    }

    __device__ void finish(int64_t, float, float) const {}
};

}  // namespace

int64_t workspace_cuda(const LikelihoodParams& p) { return LikelihoodPlan(p).arena.used(); }

void run_cuda(const LikelihoodParams& p, cudaStream_t stream) {
    LikelihoodPlan plan(p);
    require_workspace(p.workspace_bytes, plan.arena.used());
    require(p.D <= INT32_MAX / 2 && p.S + p.K <= INT32_MAX / 2,
            "support must have fewer than 2^30 rows and features");
    const LabelledPlan labelled{plan.labelled};
    launch_labelled(labelled, stream);
    const int* const chosen = p.every ? nullptr : labelled.chosen;
    const Judged judged{chosen, p.labels, p.S, p.K, plan.J};
    plan.factor.judges.units = chosen;
    const bool aligned = labelled.aligned && rows_aligned(p.dtype, p.D, {p.scale});
    const ScaledRows scaled{plan.labelled, aligned};
    launch("scaled_kernel", scaled_kernel, p.B * scaled_blocks(p.K + plan.N), kThreads, 0, stream,
           scaled, plan, judged);
    const int64_t depth = row_numbers(p.D);
    const auto means = static_cast<const __half*>(p.rows);
    if (plan.by_rows) {
        const int64_t all = p.S + p.K;
        launch_product(AllProducts{{all, all, depth, means, means, true}, plan}, p.B, stream);
    } else {
        const RowProducts products{plan.J, p.K, depth, plan.judged, means};
        launch_product(StoredProducts{products, plan.cross}, p.B, stream);
    }
    if (plan.by_features) {
        const int64_t tiles = ceil_div(p.S, 32 * kTurnedRows) * ceil_div(p.D, 32);
        launch("turn_kernel", turn_kernel, p.B * tiles, kThreads, 0, stream, scaled, plan.turned);
        const RowProducts offsets{p.D, p.D, row_numbers(p.S), plan.turned, plan.turned, true};
        launch_product(FeatureProducts{offsets, plan.factor.factor}, p.B, stream);
    }
    if (p.full) {
        const RowProducts z{plan.J + plan.class_rows(), p.K, factor_columns(plan.M), plan.judges,
                            plan.factor.classes.to};
        launch_factor(plan.factor, SolvedProducts{{z, plan.solved}, plan.J, judged}, stream);
    }
    const LeftOutDistances source{plan, judged, labelled.chosen};
    if (p.full) {
        launch("lengths_kernel", lengths_kernel, ceil_div(p.B * p.K, kWarps), kThreads, 0, stream,
               source);
    }
    if (plan.J > 0) {
        launch("distances_kernel", distances_kernel, p.B * ceil_div(plan.J, kWarps), kThreads, 0,
               stream, source);
    }
    launch_calibrate(plan.calibrate, source, p.full ? kMixtureSteps : 0, stream);
}

int64_t workspace_cuda(const CalibrateParams& p) { return CalibratePlan{p}.arena.used(); }

void run_cuda(const CalibrateParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    require_workspace(p.workspace_bytes, workspace_cuda(p));
    const GivenDistances source{floats(p.distances), p.R, p.K};
    launch_calibrate(p, source, 0, stream);
}

}  // namespace paddle_ext
