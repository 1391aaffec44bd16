// Prepares the rows of a chunk for the products: normalised, centred, in the task's units, in
// halves. Also the way back: prototypes in the coordinates of the features.

#include "common/rows.cuh"
#include "cuda/tim_chunk.cuh"
#include "cuda/tim_tiles.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// All rows of the support, or of the queries, of a chunk.
template <typename Feature>
struct Rows {
    const Feature* features;  // [tasks, rows, D]
    int64_t tasks, rows, D;
    float* factor;        // [tasks, rows]
    const float* centre;  // [D] for all tasks, or [tasks, D]
    bool one_centre, normalize, aligned;

    __device__ float value(int64_t row, int64_t d) const {
        const float x = to_float(features[row * D + d]) * factor[row];
        return x - centre[(one_centre ? 0 : row / rows * D) + d];
    }
};

// 1) the factor that normalises a row
template <typename Feature>
__global__ void factor_kernel(Rows<Feature> r) {
    const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (row >= r.tasks * r.rows) return;
    const float factor =
        r.normalize ? warp_inverse_norm(r.features + row * r.D, r.D, r.aligned) : 1.0f;
    if (threadIdx.x % 32 == 0) r.factor[row] = factor;
}

// 2) the mean of the support; any point near the rows would do. A block has 128 features, each of
// its warps every eighth row.
template <typename Feature>
__global__ void centre_kernel(Rows<Feature> r, float* centre) {
    __shared__ float4 sums[kWarps][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t parts = ceil_div(r.D, int64_t(128));
    const int64_t task = blockIdx.x / parts, d = blockIdx.x % parts * 128 + lane * 4;
    const float share = 1.0f / float(r.rows);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int64_t row = task * r.rows + warp; row < (task + 1) * r.rows; row += kWarps) {
        const float4 x = load_row4(r.features + row * r.D, d, r.D, r.aligned);
        sum = sum + x * (r.factor[row] * share);
    }
    sums[warp][lane] = sum;
    __syncthreads();  // the sums of all warps are complete
    const int64_t own = blockIdx.x % parts * 128 + threadIdx.x;
    if (threadIdx.x >= 128 || own >= r.D) return;
    float mean = 0.0f;
    for (int i = 0; i < kWarps; ++i) {
        mean += reinterpret_cast<const float*>(sums[i])[threadIdx.x];
    }
    centre[task * r.D + own] = mean;
}

// 3) the largest coordinate of a task
template <typename Feature>
__global__ void largest_kernel(Rows<Feature> r, unsigned* largest) {
    const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (row >= r.tasks * r.rows) return;
    float most = 0.0f;
    for (int64_t d = threadIdx.x % 32; d < r.D; d += 32) most = fmaxf(most, fabsf(r.value(row, d)));
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) atomicMax(&largest[row / r.rows], __float_as_uint(most));
}

// 4) the units of a task
__global__ void scale_kernel(TimChunk c) {
    const int64_t task = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (task >= c.tasks) return;
    const TimParams& p = c.call;
    const int64_t own = p.size.support_shared ? 0 : task;
    const float largest = __uint_as_float(c.largest_support[own]);
    // A step may be many coordinates long, but halves resolve no more than this.
    const double rate = p.solver == TimSolver::kGradient ? p.learning_rate : 0.0;
    const double step = fmin(rate, Range<float>::kMaxWeight) / 1024;
    const double unit = tim_unit<float>(largest, step);
    const double query = tim_unit<float>(__uint_as_float(c.largest_query[task]), 0.0) / unit;
    const TimUnits<float> units(unit, p.temperature, p.learning_rate, p.weight);
    // Adam moves a coordinate by less than eight times its rate.
    double reach = Range<float>::kFarAway;
    if (p.solver == TimSolver::kGradient) {
        reach = fmin(reach, 1.0 + 8.0 * units.rate * double(p.max_iter));
    } else {
        // Means of rows, at most `rate` too far on either side, with room to spare.
        reach = fmin(reach, fmax(1.0, query) * (1.0 + 2.0 * p.learning_rate) * 4.0);
    }
    TimScale scale;
    scale.unit = float(unit);
    scale.query = float(kHalfRange / fmin(fmax(query, 1.0), Range<float>::kMaxWeight));
    scale.prototype = float(kHalfRange / tim_unit<float>(reach, 0.0));
    scale.temperature = float(units.temperature);
    scale.rate = float(units.rate);
    scale.epsilon = float(units.epsilon);
    c.scale[task] = scale;
}

// 5) the rows in halves; `is_query` selects the scale
template <typename Feature>
__global__ void split_kernel(Rows<Feature> r, const TimScale* scale, bool is_query, int64_t groups,
                             __half* out) {
    const int64_t row = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (row >= r.tasks * r.rows) return;
    const TimScale s = scale[row / r.rows];
    const float factor = (is_query ? s.query : kHalfRange) / s.unit;
    __half* const to = out + row * groups * kGroupHalves;
    for (int64_t d = threadIdx.x % 32; d < groups * kGroup; d += 32) {
        const HighLow halves = split(d < r.D ? r.value(row, d) * factor : 0.0f);
        const int64_t at = group_offset(d);
        to[at] = halves.high;
        to[at + kGroup] = halves.low;
    }
}

__global__ void output_kernel(TimChunk c) {
    const TimSizes& n = c.call.size;
    const int64_t at = int64_t(blockIdx.x) * kThreads + threadIdx.x;
    if (at >= c.tasks * n.K * n.D) return;
    const int64_t d = at % n.D, row = at / n.D, task = row / n.K;
    const float* const centre = of_support(c.centre, n, task, n.D);
    const float w = c.w[row * c.plan.groups * kGroup + d] * c.scale[task].unit + centre[d];
    static_cast<float*>(c.call.prototypes)[c.first * n.K * n.D + at] =
        fminf(fmaxf(w, Range<float>::kMinusInfinity), Range<float>::kInfinity);
}

}  // namespace

void launch_tim_rows(const TimChunk& c) {
    const TimSizes& n = c.call.size;
    const bool aligned = rows_aligned(c.call.dtype, n.D, {c.call.support, c.call.query});
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        const auto rows_of = [&](const void* features, bool shared, int64_t rows, float* factor) {
            const auto* const first = static_cast<const Feature*>(features);
            return Rows<Feature>{first + (shared ? 0 : c.first) * rows * n.D,
                                 shared ? 1 : c.tasks,
                                 rows,
                                 n.D,
                                 factor,
                                 c.centre,
                                 n.support_shared,
                                 c.call.normalize,
                                 aligned};
        };
        const auto support = rows_of(c.call.support, n.support_shared, n.S, c.support_factor);
        const auto query = rows_of(c.call.query, false, n.Q, c.query_factor);
        const auto each = [&](auto* kernel, const Rows<Feature>& r, const auto&... more) {
            launch("a kernel that prepares rows", kernel, ceil_div(r.tasks * r.rows, kWarps),
                   kThreads, 0, c.stream, r, more...);
        };
        each(factor_kernel<Feature>, support);
        each(factor_kernel<Feature>, query);
        launch("centre_kernel", centre_kernel<Feature>, support.tasks * ceil_div(n.D, 128),
               kThreads, 0, c.stream, support, c.centre);
        fill_bytes(c.largest_support, 0, support.tasks * int64_t(sizeof(unsigned)), c.stream);
        fill_bytes(c.largest_query, 0, c.tasks * int64_t(sizeof(unsigned)), c.stream);
        each(largest_kernel<Feature>, support, c.largest_support);
        each(largest_kernel<Feature>, query, c.largest_query);
        launch("scale_kernel", scale_kernel, ceil_div(c.tasks, kThreads), kThreads, 0, c.stream, c);
        each(split_kernel<Feature>, support, c.scale, false, c.plan.groups, c.support);
        each(split_kernel<Feature>, query, c.scale, true, c.plan.groups, c.query);
    });
}

void launch_tim_output(const TimChunk& c) {
    const int64_t numbers = c.tasks * c.call.size.K * c.call.size.D;
    launch("output_kernel", output_kernel, ceil_div(numbers, kThreads), kThreads, 0, c.stream, c);
}

}  // namespace paddle_ext
