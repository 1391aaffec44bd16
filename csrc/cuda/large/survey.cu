// Large tasks on CUDA before their iterations: a survey of the queries, and the coordinates. Sums
// are taken in a fixed order, without atomics.

#include "common/large.h"
#include "cuda/large/rows.cuh"

namespace paddle_ext {

namespace {

constexpr int kColumns = 128;  // features of a block, four per lane

// 1 / norm by one warp; 0 for a row of zeros. Squares of float32 cannot overflow in double.
template <typename Feature>
__device__ double inverse_norm_of(const Feature* row, int64_t D, bool aligned) {
    double sum = 0;
    for (int64_t d = threadIdx.x % 32 * 4; d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        sum += double(x.x) * x.x + double(x.y) * x.y + double(x.z) * x.z + double(x.w) * x.w;
    }
    sum = warp_sum(sum);
    return sum > 0 ? 1 / sqrt(sum) : 0.0;
}

template <typename Feature, typename Real>
__global__ void __launch_bounds__(kThreads)
    lengths_kernel(const Feature* rows, int64_t count, int64_t D, bool aligned, Real* lengths) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= count) return;
    const double found = inverse_norm_of(rows + row * D, D, aligned);
    if (threadIdx.x % 32 == 0) lengths[row] = Real(fmin(found, double(Range<float>::kInfinity)));
}

// Statistics of one feature over some rows.
struct FeatureStats {
    double sum = 0, square = 0;
    float least = INFINITY, most = -INFINITY;

    __device__ void add(const FeatureStats& other) {
        sum += other.sum;
        square += other.square;
        least = lower(least, other.least);
        most = higher(most, other.most);
    }
};

// How a survey is divided: a block takes some rows and kColumns features.
struct SurveyPlan {
    SurveyParams p;
    Arena arena{p.workspace};
    int64_t rows = p.B * p.N < (1 << 15) ? 64 : 512, blocks = ceil_div(p.N, rows);
    int64_t tiles = ceil_div(p.D, int64_t(kColumns));
    FeatureStats* parts = arena.take<FeatureStats>(p.B * blocks * p.D);  // [B, blocks, D]
    double* squares = arena.take<double>(p.B * p.D);                     // [B, D]
};

template <typename Feature>
__global__ void __launch_bounds__(kThreads) survey_kernel(SurveyPlan plan, bool aligned) {
    const SurveyParams& p = plan.p;
    __shared__ FeatureStats shared[kWarps][kColumns];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t tile = blockIdx.x % plan.tiles, part = blockIdx.x / plan.tiles;
    const int64_t task = part / plan.blocks, first = part % plan.blocks * plan.rows;
    const int64_t end = min(p.N, first + plan.rows), d = tile * kColumns + 4 * lane;
    const float* const lengths = floats(p.length);
    FeatureStats own[4];
    for (int64_t n = first + warp; n < end; n += kWarps) {
        const int64_t row = task * p.N + n;
        const float length = lengths == nullptr ? 1.0f : lengths[row];
        const float4 x =
            load_row4(static_cast<const Feature*>(p.rows) + row * p.D, d, p.D, aligned);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float value = (&x.x)[i] * length;
            own[i].add({double(value), double(value) * double(value), value, value});
        }
    }
    for (int i = 0; i < 4; ++i) shared[warp][4 * lane + i] = own[i];
    __syncthreads();
    const int column = threadIdx.x;
    if (column >= kColumns || tile * kColumns + column >= p.D) return;
    FeatureStats all = shared[0][column];
    for (int other = 1; other < kWarps; ++other) all.add(shared[other][column]);
    plan.parts[part * p.D + tile * kColumns + column] = all;
}

// One thread per feature of a task.
__global__ void __launch_bounds__(kThreads) add_survey_kernel(SurveyPlan plan) {
    const SurveyParams& p = plan.p;
    const int64_t at = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (at >= p.B * p.D) return;
    const FeatureStats* const parts = plan.parts + at / p.D * plan.blocks * p.D + at % p.D;
    FeatureStats all;
    for (int64_t block = 0; block < plan.blocks; ++block) all.add(parts[block * p.D]);
    float* const least = floats(p.least, at);
    float* const most = floats(p.most, at);
    p.sums[at] += all.sum;
    plan.squares[at] = all.square;
    *least = lower(*least, all.least);
    *most = higher(*most, all.most);
}

// --- place --------------------------------------------------------------------------------------

struct PlacePlan {
    PlaceParams p;
    Arena arena{p.workspace};
    // [B or 1, S] 1 / norm of the support rows
    double* lengths = arena.take<double>((p.shared ? 1 : p.B) * p.S);
    double* means = arena.take<double>(p.B * p.K * p.D);  // [B, K, D] without the unit
    double* reaches = arena.take<double>(p.B * p.K);      // [B, K]
};

// The mean of a class, one block each; the first class of a task also measures the queries' reach.
template <typename Feature>
__global__ void __launch_bounds__(kThreads) class_means_kernel(PlacePlan all) {
    const PlaceParams& p = all.p;
    __shared__ double scratch[kWarps];
    const int64_t at = blockIdx.x, task = at / p.K, k = at % p.K, set = p.shared ? 0 : task;
    const int64_t* const start = p.start + set * (p.K + 1) + k;
    const int64_t first = start[0], end = start[1];
    const double shots = double(end - first);
    double reach = 0;
    for (int64_t d = threadIdx.x; d < p.D; d += kThreads) {
        double sum = 0;
        for (int64_t i = first; i < end; ++i) {
            const int64_t row = set * p.S + p.order[set * p.S + i];
            const double x = to_float(static_cast<const Feature*>(p.support)[row * p.D + d]);
            sum += p.scaling == Scaling::kAuto ? x * all.lengths[row] : x;
        }
        const FeaturePlace place = place_feature<float>(p, task * p.D + d);
        const double mean = sum / safe_mass(shots) / place.width - place.centre;
        all.means[at * p.D + d] = mean;
        reach = fmax(reach, fabs(mean));
        if (k == 0) reach = fmax(reach, place.reach);
    }
    reach = block_max(reach, scratch);
    if (threadIdx.x != 0) return;
    all.reaches[at] = reach;
    p.shots[at] = shots;
}

// Means in units of the task, one block per class; the first class of a task also writes the
// coordinates.
__global__ void __launch_bounds__(kThreads) place_kernel(PlacePlan all) {
    const PlaceParams& p = all.p;
    __shared__ double scratch[kWarps];
    const int64_t at = blockIdx.x, task = at / p.K;
    double reach = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads)
        reach = fmax(reach, all.reaches[task * p.K + k]);
    const double unit = unit_for<float>(block_max(reach, scratch));
    for (int64_t d = threadIdx.x; d < p.D; d += kThreads)
        floats(p.means)[at * p.D + d] = float(all.means[at * p.D + d] / unit);
    if (at % p.K != 0) return;
    double square = 0;
    for (int64_t d = threadIdx.x; d < p.D; d += kThreads) {
        const int64_t number = task * p.D + d;
        const FeaturePlace place = place_feature<float>(p, number);
        floats(p.scale)[number] = float(1 / place.width / unit);
        floats(p.centre)[number] = float(place.centre / unit);
        const double mean = p.sums[number] / p.total;
        square += mean * mean;
    }
    square = block_sum(square, scratch);
    if (threadIdx.x != 0) return;
    p.unit[task] = unit;
    p.spread[task] = (p.squares[task] - p.total * square) / unit / unit;
}

__global__ void __launch_bounds__(kThreads) slope_kernel(SlopeParams p) {
    const int64_t task = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (task < p.B) find_slope(p, task);
}

}  // namespace

int64_t workspace_cuda(const SurveyParams& p) { return SurveyPlan{p}.arena.used(); }

void run_cuda(const SurveyParams& p, cudaStream_t stream) {
    require(p.dtype != DType::kFloat64, "rows must be of half or single precision");
    const SurveyPlan plan{p};
    require_workspace(p.workspace_bytes, plan.arena.used());
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows});
    with_feature_type(p.dtype, [&](auto* feature) {
        using Feature = std::remove_pointer_t<decltype(feature)>;
        if (p.length != nullptr) {
            launch("lengths_kernel", lengths_kernel<Feature, float>, row_blocks(p.B * p.N),
                   kThreads, 0, stream, static_cast<const Feature*>(p.rows), p.B * p.N, p.D,
                   aligned, floats(p.length));
        }
        launch("survey_kernel", survey_kernel<Feature>, p.B * plan.blocks * plan.tiles, kThreads, 0,
               stream, plan, aligned);
    });
    launch("add_survey_kernel", add_survey_kernel, ceil_div(p.B * p.D, kThreads), kThreads, 0,
           stream, plan);
    add_logs(plan.squares, p.B, p.D, p.squares, stream);
}

int64_t workspace_cuda(const PlaceParams& p) { return PlacePlan{p}.arena.used(); }

void run_cuda(const PlaceParams& p, cudaStream_t stream) {
    require(p.dtype != DType::kFloat64 && p.written == DType::kFloat32,
            "support on CUDA must be of half or single precision");
    const PlacePlan all{p};
    require_workspace(p.workspace_bytes, all.arena.used());
    with_feature_type(p.dtype, [&](auto* feature) {
        using Feature = std::remove_pointer_t<decltype(feature)>;
        const int64_t rows = (p.shared ? 1 : p.B) * p.S;
        if (p.scaling == Scaling::kAuto && rows > 0) {
            launch("lengths_kernel", lengths_kernel<Feature, double>, row_blocks(rows), kThreads, 0,
                   stream, static_cast<const Feature*>(p.support), rows, p.D,
                   rows_aligned(p.dtype, p.D, {p.support}), all.lengths);
        }
        launch("class_means_kernel", class_means_kernel<Feature>, p.B * p.K, kThreads, 0, stream,
               all);
    });
    launch("place_kernel", place_kernel, p.B * p.K, kThreads, 0, stream, all);
}

void run_cuda(const SlopeParams& p, cudaStream_t stream) {
    launch("slope_kernel", slope_kernel, ceil_div(p.B, kThreads), kThreads, 0, stream, p);
}

}  // namespace paddle_ext
