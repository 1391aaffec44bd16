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

// Rows times the root of the feature scale, four numbers from d on.
struct ScaledRows {
    LabelledParams p;
    bool aligned;

    __device__ float4 load(const void* rows, int64_t row, int64_t d) const {
        return load_row4(floats(rows, row * p.D), d, p.D, aligned);
    }
    __device__ float4 scaled(int64_t task, int64_t d, float4 x) const {
        return x * roots_approx(load(p.scale, task, d));
    }
    __device__ float4 mean(int64_t task, int64_t k, int64_t d) const {
        return scaled(task, d, load(p.means, task * p.K + k, d));
    }

    // A labelled row; minus the mean of its class if `offset`. Zero for no row, or without a class.
    __device__ float4 row(int64_t task, int64_t s, int64_t d, bool offset) const {
        const int k = s < 0 ? -1 : load_label(p.labels + task * p.S, s, p.K);
        if (k < 0) return make_float4(0, 0, 0, 0);
        const int64_t at = task * p.S + s;
        const float first = floats(p.first)[at];
        const float second = floats(p.second)[at];
        const float4 x = centred(load(p.support, at, d), first, load(p.centre, task, d));
        const float4 w = offset ? load(p.means, task * p.K + k, d) : make_float4(0, 0, 0, 0);
        return scaled(task, d, x * second - w);
    }
};

// One warp per row: by rows all offsets, else the judged rows and, for a full metric, their
// offsets; and the means. Also the squares of rows, or of offsets by rows, and of means.
__global__ void __launch_bounds__(kThreads)
    scaled_kernel(ScaledRows from, LikelihoodPlan plan, Judged judged) {
    const LikelihoodParams& p = plan.p;
    const int64_t D = p.D, count = plan.N, all = count + p.K;
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * all) return;
    const int64_t task = item / all, i = item % all, k = i - count, at = task * count + i;
    const int64_t s = k >= 0 || plan.by_rows ? i : judged.row(task, i);
    const int64_t pitch = row_halves(D);
    __half* const rows = static_cast<__half*>(p.rows);
    __half* const to = plan.by_rows ? rows + item * pitch
                       : k < 0      ? plan.judged + at * pitch
                                    : rows + (task * p.K + k) * pitch;
    float square = 0;
    for (int64_t d = 4 * (threadIdx.x % 32); d < row_numbers(D); d += 128) {
        const float4 x = k < 0 ? from.row(task, s, d, plan.by_rows) : from.mean(task, k, d);
        square += squared_norm(x);
        store_row4(to, d, x);
        if (!plan.by_features || k >= 0) continue;
        store_row4(plan.away + at * pitch, d, from.row(task, s, d, true));
    }
    square = warp_sum(square);
    if (threadIdx.x % 32 != 0) return;
    if (k < 0) plan.of_rows[at] = square;
    if (k >= 0) floats(p.squares)[task * p.K + k] = square;
}

// All offsets, transposed: a block turns 32 x 32 numbers.
__global__ void __launch_bounds__(kThreads) turn_kernel(ScaledRows from, __half* turned) {
    __shared__ float tile[32][33];
    const int64_t S = from.p.S, D = from.p.D, pitch = row_halves(S);
    const int64_t row_tiles = ceil_div(S, int64_t(32)), tiles = ceil_div(D, int64_t(32));
    const int64_t task = blockIdx.x / (row_tiles * tiles);
    const int64_t row0 = blockIdx.x / tiles % row_tiles * 32, d0 = blockIdx.x % tiles * 32;
    const int quad = threadIdx.x % 8, place = threadIdx.x / 8;
    const int64_t s = row0 + place < S ? row0 + place : -1, d = d0 + 4 * quad;
    const float4 value = d < D ? from.row(task, s, d, true) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[4 * quad + i][place] = (&value.x)[i];
    __syncthreads();
    const int first = threadIdx.x % 16 * 2;
    for (int i = threadIdx.x / 16; i < 32 && d0 + i < D; i += kThreads / 16) {
        __half* const row = turned + (task * D + d0 + i) * pitch;
        store_row2(row, row0 + first, tile[i][first], tile[i][first + 1]);
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

    // One warp per class and row; sums over the rows by every block alike.
    __device__ void start(int64_t task, Team& team) const {
        __shared__ double scratch[kCalibrateWarps];
        const int lane = threadIdx.x % 32, warp = team.thread / 32, warps = team.threads / 32;
        for (int64_t k = warp; plan.p.full && k < plan.p.K; k += warps) {
            const float length = squared_length(plan.factor.classes.to, task * plan.p.K + k);
            if (lane == 0) plan.lengths[task * plan.p.K + k] = length;
        }
        team.sync();
        for (int64_t j = warp; j < plan.J; j += warps) find_distances(task, j);
        team.sync();
        double base = 0, other = 0, variance = 0;
        const int64_t count = plan.labelled.count[task];
        const float* const own = plan.own + task * 2 * plan.J;
        const float* const shots = floats(plan.p.shots, task * plan.p.K);
        for (int64_t i = threadIdx.x; i < count; i += kCalibrateThreads) {
            const int64_t j = judge(task, i);
            const float n = shots[judged.own(task, j)];
            base += double(own[j]);
            variance += double(variance_by(own[j] / left_out_rate(n), n));
            if (plan.p.full) other += double(own[plan.J + j]);
        }
        const double rows = fmax(double(count), 1.0);
        const float each = float(block_sum(variance, scratch) / rows);
        if (threadIdx.x == 0) floats(plan.p.variance)[task] = each;
        for (int64_t k = threadIdx.x; k < plan.p.K; k += kCalibrateThreads) {
            plan.excess[task * plan.p.K + k] =
                excess_distance(each, shots[k], float(plan.p.S) / float(plan.p.K));
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

    // By one warp.
    __device__ void find_distances(int64_t task, int64_t j) const {
        const int lane = threadIdx.x % 32, own = judged.own(task, j);
        const int64_t K = plan.p.K, J = plan.J, at = (task * J + j) * K,
                      s = max(judged.row(task, j), 0);
        const float* const squares = floats(plan.p.squares, task * K);
        const float shots = floats(plan.p.shots)[task * K + own];
        const float* const of_row = plan.cross + (plan.by_rows ? (task * plan.p.S + s) * K : at);
        const auto cross = [&](int64_t k) {
            return plan.by_rows ? of_means(task, own, k) + of_row[k] : of_row[k];
        };
        const float cross_own = cross(own);
        const float off = plan.by_rows
                              ? plan.of_rows[task * plan.p.S + s]
                              : fmaxf(plan.of_rows[task * J + j] - 2 * cross_own + squares[own], 0);
        __syncwarp();  // the base distances may replace the products
        for (int64_t k = lane; k < K; k += 32) {
            const float plain = squares[k] - 2.0f * cross(k);
            plan.base[at + k] = k == own ? plain + (left_out_rate(shots) - 1.0f) * off : plain;
        }
        if (lane == 0) plan.own[task * 2 * J + j] = left_out_rate(shots) * off;
        if (!plan.p.full) return;
        const float scatter = plan.factor.scatter[task];
        const float unit = plan.by_rows ? -1.0f / scatter : 1.0f;
        const float* const along = plan.solved + (task * (J + plan.class_rows()) + j) * K;
        const float* const solved = along + (J - j + (K <= J ? own : j)) * K;  // of the own class
        const float* const lengths = plan.lengths + task * K;
        const float length = squared_length(plan.judges, task * J + j);
        const float square = plan.by_rows ? scatter * fmaxf(1.0f - length, 0.0f) : length;
        const LeftOutRow<float> row(shots, square, along[own], scatter);
        const auto between = [&](int64_t k) {  // the means of the own class and of another
            return unit * solved[k] + (plan.by_rows ? of_means(task, own, k) : 0.0f);
        };
        for (int64_t k = lane; k < K; k += 32) {
            const float of_class = unit * lengths[k] + (plan.by_rows ? squares[k] : 0.0f);
            const float to_own = row.own - (square + 2.0f * along[own] + of_class);
            plan.full[at + k] =
                k == own ? to_own : row.distance(of_class, between(k) + along[k], along[k]);
        }
        if (lane == 0) plan.own[(task * 2 + 1) * J + j] = row.own;
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
        __shared__ double scratch[kCalibrateWarps];
        const int64_t K = plan.p.K;
        float plain = 1.0f, projected = 0.0f;
        if (plan.p.full) {
            const float part = share * plan.shrink[task];
            plain = 1.0f - share + (plan.by_rows ? part : 0.0f);
            projected = plan.by_rows ? -part / plan.factor.scatter[task] : part;
        }
        const float* const drawn = floats(plan.calibrate.drawn, task * K);
        double mean = 0;
        for (int64_t k = threadIdx.x; k < K; k += kCalibrateThreads) mean += double(drawn[k]);
        mean = block_sum(mean, scratch) / double(K);
        const float rows = float(plan.labelled.count[task]) / float(K);
        for (int64_t k = threadIdx.x; k < K; k += kCalibrateThreads) {
            float& square = floats(plan.p.squares)[task * K + k];
            if (plan.p.full) square = plain * square + projected * plan.lengths[task * K + k];
            floats(plan.p.bias)[task * K + k] =
                hub_bias(drawn[k], float(mean), rows) -
                0.5f * sharpness * (square - plan.excess[task * K + k]);
        }
        for (int64_t at = threadIdx.x; plan.p.every && at < plan.p.S * K; at += kCalibrateThreads) {
            floats(plan.p.left_out)[task * plan.p.S * K + at] = mixed(task, at / K, at % K, share);
        }
        if (!plan.p.full || threadIdx.x != 0) return;
        float* const shares = floats(plan.p.shares, 3 * task);
        shares[0] = share, shares[1] = plain, shares[2] = projected;
    }
};

struct GivenDistances {
    const float* distances;  // [B, R, K]
    int64_t R, K;

    __device__ void start(int64_t, Team&) const {}

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
    launch("scaled_kernel", scaled_kernel, ceil_div(p.B * (p.K + plan.N), kWarps), kThreads, 0,
           stream, scaled, plan, judged);
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
        const int64_t tiles = ceil_div(p.S, 32) * ceil_div(p.D, 32);
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
