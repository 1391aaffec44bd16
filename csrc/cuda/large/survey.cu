// Large tasks on CUDA before their iterations: a survey of the queries. Sums are taken in a fixed
// order, without atomics.

#include "common/large.h"
#include "common/workspace.h"
#include "cuda/large/rows.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kColumns = 128;  // features of a block, four per lane

// 1 / norm of each row, by one warp; 0 for a row of zeros. Squares of float32 cannot overflow in
// double.
template <typename Feature>
__global__ void __launch_bounds__(kThreads)
    lengths_kernel(const Feature* rows, int64_t count, int64_t D, bool aligned, float* lengths) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= count) return;
    double sum = 0;
    for (int64_t d = threadIdx.x % 32 * 4; d < D; d += 128) {
        const float4 x = load_row4(rows + row * D, d, D, aligned);
        sum += double(x.x) * x.x + double(x.y) * x.y + double(x.z) * x.z + double(x.w) * x.w;
    }
    sum = warp_sum(sum);
    const double found = sum > 0 ? 1 / sqrt(sum) : 0.0;
    if (threadIdx.x % 32 == 0) lengths[row] = float(fmin(found, double(Range<float>::kInfinity)));
}

// Statistics of one feature over some rows.
struct FeatureStats {
    double sum = 0, square = 0;
    float least = INFINITY, most = -INFINITY;

    __device__ void add(float x) {
        sum += double(x);
        square += double(x) * double(x);
        least = lower(least, x);
        most = higher(most, x);
    }

    __device__ void add(const FeatureStats& other) {
        sum += other.sum;
        square += other.square;
        least = lower(least, other.least);
        most = higher(most, other.most);
    }
};

// How a survey is divided: a block takes some rows and kColumns features.
struct SurveyPlan {
    int64_t rows, blocks, tiles;
    FeatureStats* parts;  // [B, blocks, D]
    double* squares;      // [B, D]
    int64_t used;

    explicit SurveyPlan(const SurveyParams& p)
        : rows(p.B * p.N < (1 << 15) ? 64 : 512), blocks(ceil_div(p.N, rows)),
          tiles(ceil_div(p.D, int64_t(kColumns))) {
        Arena arena(p.workspace);
        parts = arena.take<FeatureStats>(p.B * blocks * p.D);
        squares = arena.take<double>(p.B * p.D);
        used = arena.used();
    }
};

template <typename Feature>
__global__ void __launch_bounds__(kThreads)
    survey_kernel(SurveyParams p, SurveyPlan plan, bool aligned) {
    __shared__ FeatureStats shared[kWarps][kColumns];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t tile = blockIdx.x % plan.tiles, part = blockIdx.x / plan.tiles;
    const int64_t task = part / plan.blocks, first = part % plan.blocks * plan.rows;
    const int64_t end = min(p.N, first + plan.rows), d = tile * kColumns + 4 * lane;
    const float* const lengths = static_cast<const float*>(p.length);
    FeatureStats own[4];
    for (int64_t n = first + warp; n < end; n += kWarps) {
        const int64_t row = task * p.N + n;
        const float length = lengths == nullptr ? 1.0f : lengths[row];
        const float4 x =
            load_row4(static_cast<const Feature*>(p.rows) + row * p.D, d, p.D, aligned);
        own[0].add(x.x * length);
        own[1].add(x.y * length);
        own[2].add(x.z * length);
        own[3].add(x.w * length);
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
__global__ void __launch_bounds__(kThreads) add_survey_kernel(SurveyParams p, SurveyPlan plan) {
    const int64_t at = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (at >= p.B * p.D) return;
    const FeatureStats* const parts = plan.parts + at / p.D * plan.blocks * p.D + at % p.D;
    FeatureStats all;
    for (int64_t block = 0; block < plan.blocks; ++block) all.add(parts[block * p.D]);
    float* const least = static_cast<float*>(p.least) + at;
    float* const most = static_cast<float*>(p.most) + at;
    p.sums[at] += all.sum;
    plan.squares[at] = all.square;
    *least = lower(*least, all.least);
    *most = higher(*most, all.most);
}

}  // namespace

int64_t workspace_cuda(const SurveyParams& p, int) { return SurveyPlan(p).used; }

void run_cuda(const SurveyParams& p, int device, void* stream) {
    require(p.dtype != DType::kFloat64, "rows must be of half or single precision");
    const DeviceGuard guard(device);
    const SurveyPlan plan(p);
    require_workspace(p.workspace_bytes, plan.used);
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows});
    with_feature_type(p.dtype, [&](auto* feature) {
        using Feature = std::remove_pointer_t<decltype(feature)>;
        if (p.length != nullptr) {
            launch("lengths_kernel", lengths_kernel<Feature>, ceil_div(p.B * p.N, kWarps), kThreads,
                   0, stream, static_cast<const Feature*>(p.rows), p.B * p.N, p.D, aligned,
                   static_cast<float*>(p.length));
        }
        launch("survey_kernel", survey_kernel<Feature>, p.B * plan.blocks * plan.tiles, kThreads, 0,
               stream, p, plan, aligned);
    });
    launch("add_survey_kernel", add_survey_kernel, ceil_div(p.B * p.D, kThreads), kThreads, 0,
           stream, p, plan);
    add_logs(plan.squares, p.B, p.D, p.squares, stream);
}

}  // namespace paddle_ext
