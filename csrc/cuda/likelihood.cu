// `likelihood` on CUDA; the algebra is in common/likelihood.h.
//
// After `labelled`, which here writes no rows, one product gives those that calibrate with the class
// means: the rows are made of the support on their way to it, and what passes by tells the weights,
// their squares and what the rows are off their means. Then distances, calibration and bias.

#include "cuda/likelihood.h"

#include "common/check.h"
#include "common/likelihood.h"
#include "cuda/calibrate.h"
#include "cuda/labelled_rows.cuh"
#include "cuda/split_product.cuh"

namespace paddle_ext {

namespace {

__device__ inline float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

__device__ inline float4 times(float4 a, float b) {
    return make_float4(a.x * b, a.y * b, a.z * b, a.w * b);
}

__device__ inline float4 minus(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}

__device__ inline float inner(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Arrays of all tasks in the workspace, and the calls that are made of them.
struct LikelihoodPlan {
    LabelledParams labelled{};
    CalibrateParams calibrate{};
    float* off;    // [B, R]
    float* noise;  // [B]    what is taken off distances to a class of one row
    int64_t bytes;

    explicit LikelihoodPlan(const LikelihoodParams& p) {
        SharedArena arena(p.workspace);
        const int64_t B = p.B, S = p.S, K = p.K, D = p.D, R = p.R;
        off = arena.take<float>(B * R);
        noise = arena.take<float>(B);
        labelled.B = B, labelled.S = S, labelled.K = K, labelled.D = D, labelled.R = R;
        labelled.dtype = p.dtype;
        labelled.support = p.support, labelled.labels = p.labels;
        labelled.first = arena.take<float>(B * S);
        labelled.second = arena.take<float>(B * S);
        labelled.centre = p.centre, labelled.means = p.means, labelled.shots = p.shots;
        labelled.own = arena.take<int64_t>(B * R);
        labelled.judging = arena.take<int64_t>(B);
        labelled.scale = p.scale, labelled.sound = p.sound;
        calibrate.B = B, calibrate.R = R, calibrate.K = K, calibrate.dtype = p.dtype;
        calibrate.distances = arena.take<float>(B * R * K);
        calibrate.labels = labelled.own, calibrate.count = labelled.judging;
        calibrate.centre = p.prior_sharpness, calibrate.spread = p.spread;
        calibrate.sharpness = p.sharpness;
        calibrate.objective = arena.take<float>(B);
        calibrate.drawn = arena.take<float>(B * K);
        calibrate.workspace_bytes = calibrate_cuda_workspace(calibrate, 0);
        calibrate.workspace = arena.take<char>(calibrate.workspace_bytes);
        labelled.workspace_bytes = LabelledPlan(without_workspace(labelled), false).bytes;
        labelled.workspace = arena.take<char>(labelled.workspace_bytes);
        bytes = arena.used();
    }

    static LabelledParams without_workspace(LabelledParams p) {
        p.workspace = nullptr;
        return p;
    }
};

// Rows that calibrate, and class means in the feature scale.
struct JudgesProduct {
    LabelledParams p;
    LabelledPlan plan;
    float *weights, *squares, *off, *cross;
    int64_t rows, columns, depth;

    struct Reader {
        static constexpr int kSlots = kProductSlots / 2;
        const JudgesProduct& of;
        int64_t task, row0, column0, D;
        const float *support, *centre, *means, *scale;
        int row_of[kSlots], own[kSlots];  // -1: there is none
        float first[kSlots], second[kSlots], off[kSlots] = {}, squares[kSlots] = {};

        __device__ Reader(const JudgesProduct& of, int64_t task, int64_t row0, int64_t column0)
            : of(of), task(task), row0(row0), column0(column0), D(of.p.D),
              support(static_cast<const float*>(of.p.support) + task * of.p.S * D),
              centre(static_cast<const float*>(of.p.centre) + task * D),
              means(static_cast<const float*>(of.p.means) + task * of.p.K * D),
              scale(static_cast<const float*>(of.p.scale) + task * D) {
            const int64_t count = of.p.judging[task], at = task * of.p.R;
#pragma unroll
            for (int i = 0; i < kSlots; ++i) {
                const int64_t r = place(row0, i);
                row_of[i] = r < count ? of.plan.chosen[at + r] : -1;
                own[i] = r < count ? int(of.p.own[at + r]) : 0;
                const int64_t s = task * of.p.S + max(row_of[i], 0);
                first[i] = static_cast<const float*>(of.p.first)[s];
                second[i] = static_cast<const float*>(of.p.second)[s];
            }
        }

        __device__ static int64_t place(int64_t start, int slot) {
            return start + threadIdx.x / 8 + slot * kRowsOfSlot;
        }

        __device__ float4 load(const float* row, int64_t d) const {
            return load_row4(row, d, D, of.plan.aligned);
        }

        __device__ float4 row(int slot, int64_t, int64_t d) {
            if (row_of[slot] < 0) return make_float4(0, 0, 0, 0);
            const float4 raw = load(support + row_of[slot] * D, d);
            const float4 x = times(centred(raw, first[slot], load(centre, d)), second[slot]);
            if (column0 == 0) {
                const float4 away = minus(x, load(means + own[slot] * D, d));
                off[slot] += inner(times(away, away), load(scale, d));
            }
            return x;
        }

        __device__ float4 column(int slot, int64_t k, int64_t d) {
            if (k >= of.columns) return make_float4(0, 0, 0, 0);
            const float4 mean = load(means + k * D, d), weight = times(mean, load(scale, d));
            if (row0 == 0 && d < D) {
                store_row4(of.weights + (task * of.columns + k) * D, d, D, of.plan.aligned, weight);
                squares[slot] += inner(mean, weight);
            }
            return weight;
        }

        __device__ void finish() const {
#pragma unroll
            for (int i = 0; i < kSlots; ++i) {
                float distance = off[i], square = squares[i];
                for (int step = 4; step > 0; step /= 2) {
                    distance += __shfl_xor_sync(kAllLanes, distance, step);
                    square += __shfl_xor_sync(kAllLanes, square, step);
                }
                if (threadIdx.x % 8 != 0) continue;
                const int64_t r = place(row0, i), k = place(column0, i);
                if (column0 == 0 && r < of.rows) of.off[task * of.rows + r] = distance;
                if (row0 == 0 && k < of.columns) of.squares[task * of.columns + k] = square;
            }
        }
    };

    __device__ void store(int64_t task, int64_t r, int64_t k, float value) const {
        cross[(task * rows + r) * columns + k] = value;
    }
};

constexpr int kDistanceThreads = 512;

// From products to squared distances, each row left out of its class; a block a task.
__global__ void __launch_bounds__(kDistanceThreads)
    distances_kernel(LikelihoodParams p, LikelihoodPlan plan, float* distances) {
    __shared__ double scratch[kDistanceThreads / 32];
    const int64_t task = blockIdx.x, K = p.K, R = p.R, count = plan.labelled.judging[task];
    const int lane = threadIdx.x % 32;
    const float* const shots = static_cast<const float*>(p.shots) + task * K;
    const float* const squares = static_cast<const float*>(p.squares) + task * K;
    const int64_t* const own = plan.labelled.own + task * R;
    const float* const off = plan.off + task * R;
    double scatter = 0;
    for (int64_t i = threadIdx.x; i < count; i += kDistanceThreads) {
        scatter += double(scatter_of(off[i], shots[own[i]]));
    }
    scatter = block_sum(scatter, scratch);
    const float noise = count > 0 ? float(kNoise * scatter / double(count)) : 0.0f;
    if (threadIdx.x == 0) plan.noise[task] = noise;
    for (int64_t i = threadIdx.x / 32; i < R; i += kDistanceThreads / 32) {
        const float distance = left_out_rate(shots[own[i]]) * off[i];
        float* const to = distances + (task * R + i) * K;
        for (int64_t k = lane; k < K; k += 32) {
            const float plain = squares[k] - noise / fmaxf(shots[k], 1.0f) - 2.0f * to[k];
            to[k] = k == own[i] ? plain + (distance - off[i]) : plain;
        }
        if (lane == 0) static_cast<float*>(p.usual)[task * R + i] = i < count ? distance : NAN;
    }
}

// A block a task.
__global__ void __launch_bounds__(kThreads) bias_kernel(LikelihoodParams p, LikelihoodPlan plan) {
    __shared__ double scratch[kWarps];
    const int64_t task = blockIdx.x, K = p.K;
    const float* const drawn = static_cast<const float*>(plan.calibrate.drawn) + task * K;
    double mean = 0;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) mean += double(drawn[k]);
    mean = block_sum(mean, scratch) / double(K);
    const float rows = float(plan.labelled.judging[task]) / float(K);
    const float half = 0.5f * static_cast<const float*>(p.sharpness)[task];
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        const float n = fmaxf(static_cast<const float*>(p.shots)[task * K + k], 1.0f);
        const float square = static_cast<const float*>(p.squares)[task * K + k];
        static_cast<float*>(p.bias)[task * K + k] =
            hub_bias(drawn[k], float(mean), rows) - half * (square - plan.noise[task] / n);
    }
}

}  // namespace

int64_t likelihood_cuda_workspace(const LikelihoodParams& p, int) {
    LikelihoodParams counted = p;
    counted.workspace = nullptr;
    return LikelihoodPlan(counted).bytes;
}

void likelihood_cuda(const LikelihoodParams& p, int device, void* stream) {
    require_workspace(p.workspace_bytes, likelihood_cuda_workspace(p, device));
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    const LikelihoodPlan plan(p);
    const LabelledPlan rows = labelled_plan(plan.labelled);
    launch_labelled(plan.labelled, rows, on);
    const auto distances = static_cast<float*>(const_cast<void*>(plan.calibrate.distances));
    const JudgesProduct product{plan.labelled,
                                rows,
                                static_cast<float*>(p.weights),
                                static_cast<float*>(p.squares),
                                plan.off,
                                distances,
                                p.R,
                                p.K,
                                p.D};
    launch_split_product(product, p.B, "split_product_kernel of likelihood", on);
    distances_kernel<<<grid_size(p.B), kDistanceThreads, 0, on>>>(p, plan, distances);
    check_launch("distances_kernel");
    calibrate_cuda(plan.calibrate, device, stream);
    bias_kernel<<<grid_size(p.B), kThreads, 0, on>>>(p, plan);
    check_launch("bias_kernel");
}

}  // namespace paddle_ext
