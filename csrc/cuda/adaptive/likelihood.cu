// `likelihood` on CUDA; the algebra is in common/adaptive.h.
//
// First come statistics of the labelled rows. Then the prototypes are written in the feature weights, and
// all offsets if the full metric is factorised by rows, else only the rows that are left out. Last come
// its factor, distances in both metrics, and calibration.

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
    int64_t J = p.every ? p.S : p.R;  // rows left out: all, or the calibration rows
    bool by_rows = p.full && p.S < D, by_features = p.full && !by_rows;  // see common/adaptive.h
    int64_t N = by_rows ? p.S : J, M = p.S < D ? p.S : D;  // rows of `cross`, numbers of z
    int64_t F = p.full ? B : 0;                            // tasks with a full metric
    // [B, J, D'] rows left out, in the feature weights; unless by rows
    __half* judged = halves(by_rows ? 0 : B * J, D);
    // [B, J] rows left out with themselves; by rows [B, S] those of V
    float* of_rows = arena.take<float>(B * N);
    // [B, J, 2] offsets of rows left out with themselves, and with the mean of their class
    float2* of_offsets = arena.take<float2>(by_rows ? 0 : B * J);
    // [B, J, K] rows left out with prototypes; by rows [B, S, K] those of V with prototypes
    float* cross = arena.take<float>(B * N * K);
    // [B, J, K] distances in the feature weights, except the terms of classes
    float* base = by_rows ? arena.take<float>(B * J * K) : cross;
    // [B, K, K] by rows: prototypes with one another, the lower triangle
    float* means = arena.take<float>(by_rows ? B * K * K : 0);
    // By features: [B, J, D'] scaled offsets of rows left out, [B, D, S'] all of V, transposed
    __half* away = halves(by_features ? B * J : 0, D);
    __half* turned = halves(by_features ? B * D : 0, p.S);
    // [B, J, M'] z of the rows left out
    __half* judges = halves(F * J, factor_columns(M));
    // [B, J + .., K] products of z of rows left out and of some classes with z of classes
    float* solved = arena.take<float>(F * (J + class_rows()) * K);
    float* full = arena.take<float>(F * J * K);  // [B, J, K] distances in the full metric, likewise
    // [B, 2, J] squared offsets from the others of the class, in both metrics
    float* offsets = arena.take<float>(B * 2 * J);
    float* terms = arena.take<float>(B * K);    // [B, K] of the log-determinant in distances
    float* lengths = arena.take<float>(F * K);  // [B, K]    z of classes with themselves
    float* shrink = arena.take<float>(F);       // [B]       1 / kappa
    LabelledParams labelled = labelled_of<float>(p);
    CalibrateParams calibrate = calibrate_of<float>(p);
    Factor factor{B, M, nullptr, floats(p.factor), floats(p.scatter)};

    explicit LikelihoodPlan(const LikelihoodParams& call) : p(call) {
        labelled.first = arena.take<float>(B * p.S);
        labelled.second = arena.take<float>(B * p.S);
        labelled.own = arena.take<int64_t>(B * p.R);
        labelled.members = arena.take<ClassSums>(B * K);
        labelled.degrees = arena.take<double>(B);
        factor.degrees = labelled.degrees;
        labelled.workspace = arena.take<char>(LabelledPlan{labelled}.arena.used());
        calibrate.labels = labelled.own;
        calibrate.objective = arena.take<float>(B);
        calibrate.drawn = arena.take<float>(B * K);
        calibrate.workspace = arena.take<char>(workspace_cuda(calibrate));
        factor.teams = arena.take<TeamMemory>(F);
        const int64_t pitch = by_rows ? factor_columns(M) : row_numbers(D);
        const auto z = static_cast<__half*>(p.solved);
        factor.classes = {K, by_rows ? p.solved : p.rows, !by_rows, 0, pitch, z};
        factor.judges = {J, by_rows ? nullptr : away, true, p.S, pitch, judges};
    }

    __half* halves(int64_t rows, int64_t numbers) {
        return arena.take<__half>(rows * row_halves(numbers));
    }

    // Classes that are multiplied with all others: all, or with more classes than rows left out, those
    // of these rows.
    __host__ __device__ int64_t class_rows() const { return K <= J ? K : J; }
};

// Which labelled rows are left out, and their classes.
struct Judged {
    const int64_t* labels;
    int64_t S, K, J;

    __device__ int64_t row(int64_t j) const { return calibration_row(j, S, J); }

    __device__ int own(int64_t task, int64_t j) const {
        return max(load_label(labels + task * S, row(j), K), 0);
    }
};

// --- rows in the feature weights -----------------------------------------------------------------

// Four features from d on: the centre, and the roots of their weights.
struct Features {
    int64_t d;
    float4 centre, root;
};

// A labelled row and the mean of its class; or a mean alone, times `known`; or neither.
struct LabelledRow {
    const float *x = nullptr, *mean = nullptr;
    float first = 0, second = 0, known = 1;
    float root = 1;  // of its weight
};

// Rows times the root of the feature weights.
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
        const float root = p.weights != nullptr ? sqrtf(floats(p.weights)[at]) : 1.0f;
        return {floats(p.support, at * p.D), mean(task, k), floats(p.first)[at],
                floats(p.second)[at],        1.0f,          root};
    }
    __device__ const float* mean(int64_t task, int64_t k) const {
        return floats(p.means, (task * p.K + k) * p.D);
    }
    __device__ LabelledRow prototype(int64_t task, int64_t k) const {
        const float shots = floats(p.shots)[task * p.K + k];
        return {nullptr, mean(task, k), 0, 0, shots / (shots + floats(p.prior_rows)[task])};
    }

    // Four numbers of the mean of the class of a row, or zeros.
    __device__ float4 of_class(const LabelledRow& row, const Features& at) const {
        if (row.mean == nullptr) return make_float4(0, 0, 0, 0);
        return load(row.mean, at.d) * at.root;
    }

    // Four numbers of a row, minus the mean of its class if `offset`; or of a prototype; or zeros.
    __device__ float4 scaled(const LabelledRow& row, const Features& at, bool offset) const {
        if (row.mean == nullptr) return make_float4(0, 0, 0, 0);
        if (row.x == nullptr) return load(row.mean, at.d) * row.known * at.root;
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

// By rows all of V, else the rows left out and, for a full metric, their offsets; and the prototypes.
// Also the squares of rows, or of V by rows, and of prototypes; and products of offsets unless by rows.
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
    float2 offset[kScaledRows] = {};
#pragma unroll
    for (int r = 0; r < kScaledRows; ++r) {
        const int64_t i = row0 + r;
        if (i < count) row[r] = from.row(task, plan.by_rows ? i : judged.row(i));
        if (i >= count && i < all) row[r] = from.prototype(task, i - count);
    }
    for (int64_t d = 4 * (threadIdx.x % 32); d < row_numbers(p.D); d += 128) {
        const Features at = from.features(task, d);
#pragma unroll
        for (int r = 0; r < kScaledRows; ++r) {
            const int64_t i = row0 + r, judge = (task * count + i) * pitch;
            if (i >= all) break;
            float4 x = from.scaled(row[r], at, plan.by_rows);
            if (plan.by_rows) x = x * row[r].root;
            square[r] += squared_norm(x);
            store_row4(plan.by_rows ? rows + (task * all + i) * pitch
                       : i < count  ? plan.judged + judge
                                    : rows + (task * p.K + i - count) * pitch,
                       d, x);
            if (plan.by_rows || i >= count) continue;
            const float4 away = from.scaled(row[r], at, true), mean = from.of_class(row[r], at);
            const float4 along = away * mean;
            offset[r].x += squared_norm(away);
            offset[r].y += along.x + along.y + along.z + along.w;
            if (plan.by_features) store_row4(plan.away + judge, d, away);
        }
    }
#pragma unroll
    for (int r = 0; r < kScaledRows; ++r) {
        const float sum = warp_sum(square[r]);
        const float2 of_offset = {warp_sum(offset[r].x), warp_sum(offset[r].y)};
        const int64_t i = row0 + r;
        if (threadIdx.x % 32 != 0 || i >= all) continue;
        (i < count ? plan.of_rows[task * count + i] : floats(p.squares)[task * p.K + i - count]) =
            sum;
        if (!plan.by_rows && i < count) plan.of_offsets[task * count + i] = of_offset;
    }
}

// All of V, transposed: a block turns 128 x 32 numbers.
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
        const LabelledRow row = from.row(task, s < S ? s : -1);
        const float4 value = from.scaled(row, at, true) * row.root;
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

// By rows: V and prototypes with one another.
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

// z of the rows left out, on the left, and of some classes, with z of all classes.
struct SolvedProducts : StoredProducts {
    int64_t J;
    Judged judged;

    __device__ const __half* row(int64_t task, int64_t r) const {
        if (r < J) return left + (task * J + r) * 2 * depth;
        return column(task, columns <= J ? r - J : judged.own(task, r - J));
    }
};

// --- distances -----------------------------------------------------------------------------------

// Distances (5) of rows left out, see LeftOutRow.
struct LeftOutDistances {
    LikelihoodPlan plan;
    Judged judged;

    // Which of the rows left out is calibration row i.
    __device__ int64_t place(int64_t i) const {
        return plan.p.every ? calibration_row(i, plan.p.S, plan.p.R) : i;
    }

    __device__ float shots(int64_t task, int64_t k) const {
        return floats(plan.p.shots)[task * plan.p.K + k];
    }

    __device__ ClassSums members(int64_t task, int64_t k) const {
        return plan.labelled.members[task * plan.p.K + k];
    }

    // Of row j of those that are left out.
    __device__ float row_weight(int64_t task, int64_t j) const {
        return plan.p.weights != nullptr ? floats(plan.p.weights)[task * plan.p.S + judged.row(j)]
                                         : 1.0f;
    }

    __device__ LeftOutRow<float> left_out(int64_t task, int64_t j, int own) const {
        return {members(task, own), double(row_weight(task, j)), floats(plan.p.prior_rows)[task],
                floats(plan.p.variance)[task]};
    }

    __device__ float weight(int64_t task, int64_t i) const {
        const int64_t j = place(i);
        return members(task, judged.own(task, j)).has_others() ? row_weight(task, j) : 0.0f;
    }

    // The product of two prototypes.
    __device__ float of_prototypes(int64_t task, int64_t a, int64_t b) const {
        return plan.means[(task * plan.p.K + max(a, b)) * plan.p.K + min(a, b)];
    }

    // The length of distances in the full metric, and the terms of classes; by every block alike.
    __device__ void start(int64_t task) const {
        __shared__ double scratch[kMostCalibrateThreads / 32];
        const float variance = floats(plan.p.variance)[task];
        const float prior_rows = floats(plan.p.prior_rows)[task];
        for (int64_t k = threadIdx.x; k < plan.p.K; k += blockDim.x) {
            const float mass = shots(task, k) + prior_rows;
            plan.terms[task * plan.p.K + k] = determinant(variance, mass, mass);
        }
        __syncthreads();
        if (!plan.p.full) return;
        double plain = 0, full = 0;
        const float* const offsets = plan.offsets + task * 2 * plan.J;
        for (int64_t i = threadIdx.x; i < plan.p.R; i += blockDim.x) {
            const int64_t j = place(i);
            plain += double(offsets[j]);
            full += double(offsets[plan.J + j]);
        }
        const double none = kNoScatter * double(plan.p.R);
        plain = block_sum(plain, scratch) + none;
        full = block_sum(full, scratch) + none;
        if (threadIdx.x == 0) plan.shrink[task] = float(plain / full);
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
        const int64_t K = plan.p.K, J = plan.J, at = (task * J + j) * K, s = judged.row(j);
        const float* const squares = floats(plan.p.squares, task * K);
        const float prior_rows = floats(plan.p.prior_rows)[task];
        const LeftOutRow<float> row = left_out(task, j, own);
        // What undoes the root of the weight of a row in V.
        const float over = by_rows ? 1.0f / sqrtf(row_weight(task, j)) : 1.0f;
        const float* const of_row = plan.cross + (by_rows ? (task * plan.p.S + s) * K : at);
        const auto cross = [&](int64_t k) {  // x.m, by rows from v.m
            return by_rows ? row.stretch * of_prototypes(task, own, k) + over * of_row[k]
                           : of_row[k];
        };
        const float given = plan.of_rows[by_rows ? task * plan.p.S + s : task * J + j];
        float2 offset;  // o.o and o.m
        if (by_rows) {
            offset = make_float2(over * over * given, over * of_row[own]);
        } else {
            offset = plan.of_offsets[task * J + j];
            offset.y /= row.stretch;
        }
        const float of_own = squares[own];
        const float both = 2 * offset.y + row.stretch * of_own;
        const float self = by_rows ? offset.x + row.stretch * both : given;  // x.x
        const float base_own = row.to_own(offset.x, offset.y, of_own, 0.0f);

        const float scatter = full ? plan.factor.scatter[task] : 1.0f;
        const float unit = by_rows ? -1.0f / scatter : 1.0f;
        const float* const along = plan.solved + (task * (J + plan.class_rows()) + j) * K;  // v A m
        const float* const solved = along + (J - j + (K <= J ? own : j)) * K;  // of the own class
        const auto of_class = [&](int64_t k) {                                 // m A m
            return unit * plan.lengths[task * K + k] + (by_rows ? squares[k] : 0.0f);
        };
        const float along_own = full ? over * along[own] : 0.0f;  // o A m
        const float length = full ? squared_length(plan.judges, task * J + j) : 0.0f;
        const float square =  // o A o
            by_rows ? over * over * scatter * fmaxf(1.0f - length, 0.0f) : length;
        const float gain = full ? row.gain(square, scatter) : 0.0f;
        const float along_row = square + row.stretch * along_own;  // o A x
        float self_full = 0, full_own = 0;                         // x A x, and to the own class
        if (full) {
            const float in_full = of_class(own);
            self_full = square + row.stretch * (2 * along_own + row.stretch * in_full);
            full_own = row.to_own(square, along_own, in_full, gain);
        }
        __syncwarp();  // the distances may replace the products
#pragma unroll 2
        for (int64_t k = lane; k < K; k += 32) {
            const float factor = closeness(shots(task, k) + prior_rows);
            const float base = factor * fmaxf(self - 2.0f * cross(k) + squares[k], 0.0f);
            plan.base[at + k] = k == own ? base_own : base;
            if (!full) continue;
            const float between =  // the prototypes of the own class and of another
                unit * solved[k] + (by_rows ? of_prototypes(task, own, k) : 0.0f);
            const float along_class = over * along[k], away = along_row - along_class;
            const float cross_full = along_class + row.stretch * between;
            const float plain = fmaxf(self_full - 2.0f * cross_full + of_class(k), 0.0f);
            plan.full[at + k] = k == own ? full_own : factor * (plain + gain * away * away);
        }
        if (lane != 0) return;
        plan.offsets[task * 2 * J + j] = row.squared_offset(offset.x, 0.0f);
        if (full) plan.offsets[(task * 2 + 1) * J + j] = row.squared_offset(square, gain);
    }

    __device__ float mixed(int64_t task, int64_t j, int64_t k, float share) const {
        const int64_t at = (task * plan.J + j) * plan.p.K + k;
        const int own = judged.own(task, j);
        const float term =
            k == own ? left_out(task, j, own).own_determinant : plan.terms[task * plan.p.K + k];
        const float base = plan.base[at];
        if (!plan.p.full) return base + term;
        return base + share * (plan.full[at] * plan.shrink[task] - base) + term;
    }

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float share) const {
        const int64_t j = place(i);
        // A class that is left with no row does not compete for the one that is left out.
        const int own = judged.own(task, j);
        if (k == own && plan.p.K > 1 && !members(task, own).has_others()) return kFarBehind;
        return mixed(task, j, k, share);
    }

    // What depends on the mixture.
    __device__ void finish(int64_t task, float, float share) const {
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
        const float rows = float(plan.p.R) / float(K);
        for (int64_t k = threadIdx.x; k < K; k += blockDim.x) {
            float& square = floats(plan.p.squares)[task * K + k];
            if (plan.p.full) square = plain * square + projected * plan.lengths[task * K + k];
            floats(plan.p.bias)[task * K + k] = hub_bias(drawn[k], float(mean), rows);
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

// One warp per row that is left out.
__global__ void __launch_bounds__(kThreads) distances_kernel(LeftOutDistances d) {
    const unsigned blocks = unsigned(ceil_div(d.plan.J, kWarps));
    const int64_t j = blockIdx.x % blocks * kWarps + threadIdx.x / 32;
    if (j < d.plan.J) d.find_distances(blockIdx.x / blocks, j);
}

struct GivenDistances {
    const float* distances;  // [B, R, K]
    const float* weights;    // [B, R] or null
    int64_t R, K;

    __device__ void start(int64_t) const {}

    __device__ float weight(int64_t task, int64_t i) const {
        return weights == nullptr ? 1.0f : weights[task * R + i];
    }

    __device__ float operator()(int64_t task, int64_t i, int64_t k, float) const {
        return distances[(task * R + i) * K + k];
    }

    __device__ void finish(int64_t, float, float) const {}
};

// Class means become prototypes, which no kernel needs before.
__global__ void __launch_bounds__(kThreads) shrink_kernel(LabelledParams p) {
    const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x, task = at / (p.K * p.D);
    if (task >= p.B) return;
    const float shots = floats(p.shots)[at / p.D];
    floats(p.means)[at] *= shots / (shots + floats(p.prior_rows)[task]);
}

}  // namespace

int64_t workspace_cuda(const LikelihoodParams& p) { return LikelihoodPlan(p).arena.used(); }

void run_cuda(const LikelihoodParams& p, cudaStream_t stream) {
    LikelihoodPlan plan(p);
    require_workspace(p.workspace_bytes, plan.arena.used());
    require(p.D <= INT32_MAX / 2 && p.S + p.K <= INT32_MAX / 2,
            "support must have fewer than 2^30 rows and features");
    const LabelledPlan labelled{plan.labelled};
    launch_labelled(labelled, stream);
    const Judged judged{p.labels, p.S, p.K, plan.J};
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
    const LeftOutDistances source{plan, judged};
    if (p.full) {
        launch("lengths_kernel", lengths_kernel, ceil_div(p.B * p.K, kWarps), kThreads, 0, stream,
               source);
    }
    if (plan.J > 0) {
        launch("distances_kernel", distances_kernel, p.B * ceil_div(plan.J, kWarps), kThreads, 0,
               stream, source);
    }
    launch_calibrate(plan.calibrate, source, p.full ? kMixtureSteps : 0, stream);
    launch("shrink_kernel", shrink_kernel, ceil_div(p.B * p.K * p.D, int64_t(kThreads)), kThreads,
           0, stream, plan.labelled);
}

int64_t workspace_cuda(const CalibrateParams& p) { return CalibratePlan{p}.arena.used(); }

void run_cuda(const CalibrateParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "distances on CUDA must be float32 for the native code");
    require_workspace(p.workspace_bytes, workspace_cuda(p));
    const GivenDistances source{floats(p.distances), floats(p.weights), p.R, p.K};
    launch_calibrate(p, source, 0, stream);
}

}  // namespace paddle_ext
