// `likelihood` on CUDA; the algebra is in common/adaptive.h.
//
// `labelled` writes no rows here. Then the means are written in the feature scale, and all offsets
// if the full metric is factorised by rows, else only the rows to be judged. Last come its factor,
// distances in both metrics, and calibration.

#include "common/adaptive.h"
#include "common/params.h"
#include "common/workspace.h"
#include "cuda/adaptive/calibrate.cuh"
#include "cuda/adaptive/factor.cuh"
#include "cuda/adaptive/labelled.cuh"
#include "cuda/adaptive/tile_product.cuh"

namespace paddle_ext {

namespace {

// Arrays of all tasks in the workspace, and the calls that use them.
struct LikelihoodPlan {
    LabelledParams labelled{};
    CalibrateParams calibrate{};
    Factor factor{};
    int64_t J;       // rows judged: all, or the calibration rows
    bool by_rows;    // see Factor; false without a full metric
    __half* judged;  // [B, J, D'] judged rows in the feature scale; unless by rows
    float* of_rows;  // [B, J]    judged rows with themselves; by rows [B, S] offsets
    float* cross;    // [B, J, K] judged rows with means; by rows [B, S, K] offsets with means
    float* base;     // [B, J, K] distances in the feature scale, each row left out of its class
    float* means;    // [B, K, K] by rows: means with means, the lower triangle
    __half* away;    // [B, J, D'] by features: scaled offsets of the judges
    __half* turned;  // [B, D, S'] by features: all scaled offsets, transposed
    __half* judges;  // [B, J, M'] z of the judges
    float* solved;   // [B, J + N, K] products of z of judges and of N classes with z of classes
    float* full;     // [B, J, K] distances in the full metric
    float* own;      // [B, 2, J] distances to the own class in both metrics
    float* excess;   // [B, K]    see excess_distance
    float* lengths;  // [B, K]    z of classes with themselves
    float* shrink;   // [B]       1 / kappa
    int64_t bytes;

    explicit LikelihoodPlan(const LikelihoodParams& p) {
        SharedArena arena(p.workspace);
        const int64_t B = p.B, S = p.S, K = p.K, D = p.D, R = p.R;
        const auto floats = [&](bool used, int64_t count) {
            return used ? arena.take<float>(count) : nullptr;
        };
        const auto halves = [&](bool used, int64_t rows, int64_t numbers) {
            return used ? arena.take<__half>(rows * row_halves(numbers)) : nullptr;
        };
        J = p.every ? S : R;
        by_rows = p.full && S < D;
        const int64_t M = S < D ? S : D;
        judged = halves(!by_rows, B * J, D);
        of_rows = arena.take<float>(B * (by_rows ? S : J));
        cross = arena.take<float>(B * (by_rows ? S : J) * K);
        base = by_rows ? arena.take<float>(B * J * K) : cross;
        means = floats(by_rows, B * K * K);
        away = halves(p.full && !by_rows, B * J, D);
        turned = halves(p.full && !by_rows, B * D, S);
        judges = halves(p.full, B * J, factor_columns(M));
        solved = floats(p.full, B * (J + class_rows(K)) * K);
        full = floats(p.full, B * J * K);
        own = arena.take<float>(B * 2 * J);
        excess = arena.take<float>(B * K);
        lengths = floats(p.full, B * K);
        shrink = floats(p.full, B);
        labelled.B = B, labelled.S = S, labelled.K = K, labelled.D = D, labelled.R = R;
        labelled.dtype = p.dtype;
        labelled.support = p.support, labelled.labels = p.labels;
        labelled.first = arena.take<float>(B * S);
        labelled.second = arena.take<float>(B * S);
        labelled.centre = p.centre, labelled.means = p.means, labelled.shots = p.shots;
        labelled.own = arena.take<int64_t>(B * R);
        labelled.count = arena.take<int64_t>(B);
        labelled.scale = p.scale, labelled.finite = p.finite;
        calibrate.B = B, calibrate.R = R, calibrate.K = K, calibrate.dtype = p.dtype;
        calibrate.labels = labelled.own, calibrate.count = labelled.count;
        calibrate.centre = p.prior_sharpness, calibrate.spread = p.spread;
        calibrate.sharpness = p.sharpness;
        calibrate.objective = arena.take<float>(B);
        calibrate.drawn = arena.take<float>(B * K);
        calibrate.workspace_bytes = CalibratePlan(calibrate).bytes;
        calibrate.workspace = arena.take<char>(calibrate.workspace_bytes);
        factor.B = B, factor.S = S, factor.K = K, factor.M = M;
        factor.factor = static_cast<float*>(p.factor);
        factor.scatter = floats(p.full, B);
        factor.teams = p.full ? arena.take<TeamMemory>(B) : nullptr;
        const int64_t pitch = by_rows ? factor_columns(M) : row_numbers(D);
        const auto z = static_cast<__half*>(p.solved);
        factor.classes = {K, by_rows ? p.solved : p.rows, !by_rows, nullptr, pitch, z};
        factor.judges = {J, away, true, nullptr, pitch, judges};
        labelled.workspace_bytes = LabelledPlan(labelled, false).bytes;
        labelled.workspace = arena.take<char>(labelled.workspace_bytes);
        bytes = arena.used();
    }

    // Classes that are multiplied with all others: all, or with more classes than judges, those of
    // the judges.
    __host__ __device__ int64_t class_rows(int64_t K) const { return K <= J ? K : J; }
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
        return load_row4(static_cast<const float*>(rows) + row * p.D, d, p.D, aligned);
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
        const float first = static_cast<const float*>(p.first)[at];
        const float second = static_cast<const float*>(p.second)[at];
        const float4 x = centred(load(p.support, at, d), first, load(p.centre, task, d));
        const float4 w = offset ? load(p.means, task * p.K + k, d) : make_float4(0, 0, 0, 0);
        return scaled(task, d, x * second - w);
    }
};

// One warp per row: by rows all offsets, else the judged rows and, for a full metric, their
// offsets; and the means. Also the squares of rows, or of offsets by rows, and of means.
__global__ void __launch_bounds__(kThreads)
    scaled_kernel(ScaledRows from, LikelihoodParams p, LikelihoodPlan plan, Judged judged) {
    const int64_t D = p.D, count = plan.by_rows ? p.S : plan.J, all = count + p.K;
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
        if (plan.away == nullptr || k >= 0) continue;
        store_row4(plan.away + at * pitch, d, from.row(task, s, d, true));
    }
    square = warp_sum(square);
    if (threadIdx.x % 32 != 0) return;
    if (k < 0) plan.of_rows[at] = square;
    if (k >= 0) static_cast<float*>(p.squares)[task * p.K + k] = square;
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
struct AllProducts : ProductSizes {
    LikelihoodParams p;
    LikelihoodPlan plan;

    __device__ const __half* row(int64_t task, int64_t r) const {
        return static_cast<const __half*>(p.rows) + (task * rows + r) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const { return row(task, c); }

    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        const int64_t S = p.S, K = p.K, k = r - S, pitch = factor_columns(S);
        if (k < 0) {
            static_cast<float*>(p.factor)[(task * pitch + r) * pitch + c] = value;
        } else if (c < S) {
            static_cast<float*>(p.solved)[(task * K + k) * pitch + c] = value;
            plan.cross[(task * S + c) * K + k] = value;
        } else {
            plan.means[(task * K + k) * K + c - S] = value;
        }
    }
};

// Else: judged rows with means.
struct JudgedProducts : ProductSizes {
    LikelihoodParams p;
    LikelihoodPlan plan;

    __device__ const __half* row(int64_t task, int64_t r) const {
        return plan.judged + (task * rows + r) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const {
        return static_cast<const __half*>(p.rows) + (task * columns + c) * 2 * depth;
    }
    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        plan.cross[(task * rows + r) * columns + c] = value;
    }
};

// V^T V.
struct FeatureProducts : ProductSizes {
    __half* turned;
    float* factor;

    __device__ const __half* row(int64_t task, int64_t r) const {
        return turned + (task * rows + r) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const { return row(task, c); }
    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        const int64_t pitch = factor_columns(rows);
        factor[(task * pitch + r) * pitch + c] = value;
    }
};

// z of the judges and of some classes, with z of all classes.
struct SolvedProducts : ProductSizes {
    LikelihoodPlan plan;
    Judged judged;

    __device__ const __half* row(int64_t task, int64_t r) const {
        const int64_t J = plan.J;
        if (r < J) return plan.judges + (task * J + r) * 2 * depth;
        return column(task, columns <= J ? r - J : judged.own(task, r - J));
    }
    __device__ const __half* column(int64_t task, int64_t c) const {
        return plan.factor.classes.to + (task * columns + c) * 2 * depth;
    }
    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        plan.solved[(task * rows + r) * columns + c] = value;
    }
};

// --- distances -----------------------------------------------------------------------------------

// Squared distances of the judged rows, up to a constant per row, each left out of its class.
struct LeftOutDistances {
    LikelihoodParams p;
    LikelihoodPlan plan;
    Judged judged;
    const int* chosen;  // [B, R] the labelled row of a calibration row

    // The judge that is calibration row i.
    __device__ int64_t judge(int64_t task, int64_t i) const {
        return p.every ? chosen[task * p.R + i] : i;
    }

    // The product of two means.
    __device__ float of_means(int64_t task, int64_t a, int64_t b) const {
        return plan.means[(task * p.K + max(a, b)) * p.K + min(a, b)];
    }

    // One warp per class and row; sums over the rows by every block alike.
    __device__ void start(int64_t task, Team& team) const {
        __shared__ double scratch[kCalibrateWarps];
        const int lane = threadIdx.x % 32, warp = team.thread / 32, warps = team.threads / 32;
        for (int64_t k = warp; p.full && k < p.K; k += warps) {
            const float length = squared_length(plan.factor.classes.to, task * p.K + k);
            if (lane == 0) plan.lengths[task * p.K + k] = length;
        }
        team.sync();
        for (int64_t j = warp; j < plan.J; j += warps) find_distances(task, j);
        team.sync();
        double base = 0, other = 0, variance = 0;
        const int64_t count = plan.labelled.count[task];
        const float* const own = plan.own + task * 2 * plan.J;
        const float* const shots = static_cast<const float*>(p.shots) + task * p.K;
        for (int64_t i = threadIdx.x; i < count; i += kCalibrateThreads) {
            const int64_t j = judge(task, i);
            const float n = shots[judged.own(task, j)];
            base += double(own[j]);
            variance += double(variance_by(own[j] / left_out_rate(n), n));
            if (p.full) other += double(own[plan.J + j]);
        }
        const double rows = fmax(double(count), 1.0);
        const float each = float(block_sum(variance, scratch) / rows);
        if (threadIdx.x == 0) static_cast<float*>(p.variance)[task] = each;
        for (int64_t k = threadIdx.x; k < p.K; k += kCalibrateThreads) {
            plan.excess[task * p.K + k] = excess_distance(each, shots[k], float(p.S) / float(p.K));
        }
        __syncthreads();
        if (!p.full) return;
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
        const int64_t K = p.K, J = plan.J, at = (task * J + j) * K, s = max(judged.row(task, j), 0);
        const float* const squares = static_cast<const float*>(p.squares) + task * K;
        const float shots = static_cast<const float*>(p.shots)[task * K + own];
        const float* const of_row = plan.cross + (plan.by_rows ? (task * p.S + s) * K : at);
        const auto cross = [&](int64_t k) {
            return plan.by_rows ? of_means(task, own, k) + of_row[k] : of_row[k];
        };
        const float cross_own = cross(own);
        const float off = plan.by_rows
                              ? plan.of_rows[task * p.S + s]
                              : fmaxf(plan.of_rows[task * J + j] - 2 * cross_own + squares[own], 0);
        __syncwarp();  // the base distances may replace the products
        for (int64_t k = lane; k < K; k += 32) {
            const float plain = squares[k] - 2.0f * cross(k);
            plan.base[at + k] = k == own ? plain + (left_out_rate(shots) - 1.0f) * off : plain;
        }
        if (lane == 0) plan.own[task * 2 * J + j] = left_out_rate(shots) * off;
        if (!p.full) return;
        const float scatter = plan.factor.scatter[task];
        const float unit = plan.by_rows ? -1.0f / scatter : 1.0f;
        const float* const along = plan.solved + (task * (J + plan.class_rows(K)) + j) * K;
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
        const int64_t at = (task * plan.J + j) * p.K + k;
        const float base = plan.base[at];
        if (!p.full) return base;
        return base + share * (plan.full[at] * plan.shrink[task] - base);
    }

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float share) const {
        return mixed(task, judge(task, i), k, share) - plan.excess[task * p.K + k];
    }

    // What depends on the mixture.
    __device__ void finish(int64_t task, float sharpness, float share) const {
        __shared__ double scratch[kCalibrateWarps];
        const int64_t K = p.K;
        float plain = 1.0f, projected = 0.0f;
        if (p.full) {
            const float part = share * plan.shrink[task];
            plain = 1.0f - share + (plan.by_rows ? part : 0.0f);
            projected = plan.by_rows ? -part / plan.factor.scatter[task] : part;
        }
        const float* const drawn = static_cast<const float*>(plan.calibrate.drawn) + task * K;
        double mean = 0;
        for (int64_t k = threadIdx.x; k < K; k += kCalibrateThreads) mean += double(drawn[k]);
        mean = block_sum(mean, scratch) / double(K);
        const float rows = float(plan.labelled.count[task]) / float(K);
        for (int64_t k = threadIdx.x; k < K; k += kCalibrateThreads) {
            float& square = static_cast<float*>(p.squares)[task * K + k];
            if (p.full) square = plain * square + projected * plan.lengths[task * K + k];
            static_cast<float*>(p.bias)[task * K + k] =
                hub_bias(drawn[k], float(mean), rows) -
                0.5f * sharpness * (square - plan.excess[task * K + k]);
        }
        for (int64_t at = threadIdx.x; p.every && at < p.S * K; at += kCalibrateThreads) {
            static_cast<float*>(p.left_out)[task * p.S * K + at] =
                mixed(task, at / K, at % K, share);
        }
        if (!p.full || threadIdx.x != 0) return;
        float* const shares = static_cast<float*>(p.shares) + 3 * task;
        shares[0] = share, shares[1] = plain, shares[2] = projected;
    }
};

}  // namespace

int64_t workspace_cuda(const LikelihoodParams& p, int) { return LikelihoodPlan(p).bytes; }

void run_cuda(const LikelihoodParams& p, int device, void* stream) {
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    require(p.D <= INT32_MAX / 2 && p.S + p.K <= INT32_MAX / 2,
            "support must have fewer than 2^30 rows and features");
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    LikelihoodPlan plan(p);
    const LabelledPlan rows = labelled_plan(plan.labelled);
    launch_labelled(plan.labelled, rows, device, on);
    const int* const chosen = p.every ? nullptr : rows.chosen;
    const Judged judged{chosen, p.labels, p.S, p.K, plan.J};
    plan.factor.judges.units = chosen;
    const bool aligned = rows.aligned && rows_aligned(p.dtype, p.D, {p.scale});
    const ScaledRows scaled{plan.labelled, aligned};
    const int64_t items = p.B * (p.K + (plan.by_rows ? p.S : plan.J));
    launch("scaled_kernel", scaled_kernel, ceil_div(items, kWarps), kThreads, 0, on, scaled, p,
           plan, judged);
    const int64_t depth = row_numbers(p.D);
    if (plan.by_rows) {
        const int64_t all = p.S + p.K;
        launch_product(AllProducts{{all, all, depth, true}, p, plan}, p.B, on);
    } else {
        launch_product(JudgedProducts{{plan.J, p.K, depth}, p, plan}, p.B, on);
    }
    if (p.full && !plan.by_rows) {
        const int64_t tiles = ceil_div(p.S, 32) * ceil_div(p.D, 32);
        launch("turn_kernel", turn_kernel, p.B * tiles, kThreads, 0, on, scaled, plan.turned);
        launch_product(
            FeatureProducts{{p.D, p.D, row_numbers(p.S), true}, plan.turned, plan.factor.factor},
            p.B, on);
    }
    if (p.full) {
        const int64_t rows = plan.J + plan.class_rows(p.K), z = factor_columns(plan.factor.M);
        launch_factor(plan.factor, SolvedProducts{{rows, p.K, z}, plan, judged}, device, on);
    }
    const LeftOutDistances source{p, plan, judged, rows.chosen};
    launch_calibrate(plan.calibrate, source, p.full ? kMixtureSteps : 0, device, on);
}

namespace {

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

int64_t workspace_cuda(const CalibrateParams& p, int) { return CalibratePlan(p).bytes; }

void run_cuda(const CalibrateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    require_workspace(p.workspace_bytes, CalibratePlan(p).bytes);
    const DeviceGuard guard(device);
    const GivenDistances source{static_cast<const float*>(p.distances), p.R, p.K};
    launch_calibrate(p, source, 0, device, static_cast<cudaStream_t>(stream));
}

}  // namespace paddle_ext
