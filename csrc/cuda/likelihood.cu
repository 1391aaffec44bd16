// `likelihood` on CUDA; the algebra is in common/likelihood.h.
//
// After `labelled`, which writes no rows here, one product multiplies the calibration rows with the
// class means. The rows are built from the support as they are loaded, and the weights and the
// squares of both factors are computed on the way. Then distances, calibration and bias.

#include <type_traits>

#include "common/check.h"
#include "common/likelihood.h"
#include "common/params.h"
#include "cuda/calibrate.cuh"
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

__device__ inline float inner(float4 a, float4 b) {
    return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
}

// Arrays of all tasks in the workspace, and the calls that use them.
struct LikelihoodPlan {
    LabelledParams labelled{};
    CalibrateParams calibrate{};
    float* own;    // [B, R] products of the rows with themselves
    float* cross;  // [B, R, K]
    float* added;  // [B, R] see LeftOutDistances
    int64_t bytes;

    explicit LikelihoodPlan(const LikelihoodParams& p) {
        SharedArena arena(p.workspace);
        const int64_t B = p.B, S = p.S, K = p.K, D = p.D, R = p.R;
        own = arena.take<float>(B * R);
        cross = arena.take<float>(B * R * K);
        added = arena.take<float>(B * R);
        labelled.B = B, labelled.S = S, labelled.K = K, labelled.D = D, labelled.R = R;
        labelled.dtype = p.dtype;
        labelled.support = p.support, labelled.labels = p.labels;
        labelled.first = arena.take<float>(B * S);
        labelled.second = arena.take<float>(B * S);
        labelled.centre = p.centre, labelled.means = p.means, labelled.shots = p.shots;
        labelled.own = arena.take<int64_t>(B * R);
        labelled.judging = arena.take<int64_t>(B);
        labelled.scale = p.scale, labelled.finite = p.finite;
        calibrate.B = B, calibrate.R = R, calibrate.K = K, calibrate.dtype = p.dtype;
        calibrate.labels = labelled.own, calibrate.count = labelled.judging;
        calibrate.centre = p.prior_sharpness, calibrate.spread = p.spread;
        calibrate.sharpness = p.sharpness;
        calibrate.objective = arena.take<float>(B);
        calibrate.drawn = arena.take<float>(B * K);
        calibrate.workspace_bytes = calibrate_workspace_bytes(calibrate);
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

// Calibration rows, and class means in the feature scale.
template <bool aligned>
struct JudgesProduct {
    static constexpr bool kAligned = aligned;
    LabelledParams p;
    LabelledPlan plan;
    float *weights, *squares, *own, *cross;
    int64_t rows, columns, depth;

    struct Reader {
        static constexpr int kSlots = kProductSlots, kLoads = 2 * kSlots + 2;
        const JudgesProduct& of;
        int task, row0, column0;
        const float *support, *centre, *means, *scale;
        int row_of[kSlots];
        // A row beyond the last is scaled to zero; columns beyond the last are not stored.
        float first[kSlots], second[kSlots], own[kSlots] = {}, squares[kSlots] = {};

        __device__ Reader(const JudgesProduct& of, int64_t task, int64_t row0, int64_t column0)
            : of(of), task(int(task)), row0(int(row0)), column0(int(column0)),
              support(static_cast<const float*>(of.p.support) + task * of.p.S * of.p.D),
              centre(static_cast<const float*>(of.p.centre) + task * of.p.D),
              means(static_cast<const float*>(of.p.means) + task * of.p.K * of.p.D),
              scale(static_cast<const float*>(of.p.scale) + task * of.p.D) {
            const int64_t count = of.p.judging[task], at = task * of.p.R;
#pragma unroll
            for (int i = 0; i < kSlots; ++i) {
                const int r = place(this->row0, i);
                const bool there = r < count;
                row_of[i] = there ? of.plan.chosen[at + r] : 0;
                const int64_t s = task * of.p.S + row_of[i];
                first[i] = static_cast<const float*>(of.p.first)[s];
                second[i] = there ? static_cast<const float*>(of.p.second)[s] : 0.0f;
            }
        }

        __device__ static int place(int start, int slot) {
            return start + int(threadIdx.x) / 8 + slot * kRowsOfSlot;
        }

        // Rows of the support, class means, the centre and the feature scale.
        __device__ const float* source(int i) const {
            if (i < kSlots) return support + row_of[i] * of.p.D;
            if (i >= 2 * kSlots) return i == 2 * kSlots ? centre : scale;
            return means + min(place(column0, i - kSlots), int(of.columns) - 1) * of.p.D;
        }

        template <typename In>
        __device__ float4 row(int i, int64_t, const In& in) {
            const float4 value = times(centred(in(i), first[i], in(2 * kSlots)), second[i]);
            own[i] += inner(times(value, value), in(2 * kSlots + 1));
            return value;
        }

        template <typename In>
        __device__ float4 column(int i, int64_t d, const In& in) {
            const float4 mean = in(kSlots + i), weight = times(mean, in(2 * kSlots + 1));
            const int k = place(column0, i);
            if (row0 == 0 && k < of.columns && d < of.p.D) {
                float* const to = of.weights + (task * of.columns + k) * of.p.D;
                store_row4(to, d, of.p.D, kAligned, weight);
                squares[i] += inner(mean, weight);
            }
            return weight;
        }

        __device__ void finish() const {
#pragma unroll
            for (int i = 0; i < kSlots; ++i) {
                float own_square = own[i], square = squares[i];
                for (int step = 4; step > 0; step /= 2) {
                    own_square += __shfl_xor_sync(kAllLanes, own_square, step);
                    square += __shfl_xor_sync(kAllLanes, square, step);
                }
                if (threadIdx.x % 8 != 0) continue;
                const int r = place(row0, i), k = place(column0, i);
                if (column0 == 0 && r < of.rows) of.own[task * of.rows + r] = own_square;
                if (row0 == 0 && k < of.columns) of.squares[task * of.columns + k] = square;
            }
        }
    };

    __device__ void store(int64_t task, int64_t r, int64_t k, float value) const {
        cross[(task * rows + r) * columns + k] = value;
    }
};

// Squared distances of the calibration rows, from the products, each row left out of its class.
struct LeftOutDistances {
    LikelihoodParams p;
    const float *cross, *squares_of_rows;  // [B, R, K], [B, R]
    const int64_t* own;                    // [B, R]
    float* added;                          // [B, R] added to the distance to the own class

    // Squared distance of a row to its class mean; rounding may make it negative.
    __device__ float off(int64_t task, int64_t i) const {
        const int64_t at = task * p.R + i, k = own[at];
        const float square = static_cast<const float*>(p.squares)[task * p.K + k];
        return fmaxf(squares_of_rows[at] - 2.0f * cross[at * p.K + k] + square, 0.0f);
    }

    __device__ void start(int64_t task) const {
        const float* const shots = static_cast<const float*>(p.shots) + task * p.K;
        for (int64_t i = threadIdx.x; i < p.R; i += blockDim.x) {
            const float rate = left_out_rate(shots[own[task * p.R + i]]);
            added[task * p.R + i] = (rate - 1.0f) * off(task, i);
        }
        __syncthreads();
    }

    __device__ float operator()(int64_t task, int64_t i, int64_t k) const {
        const int64_t at = task * p.R + i;
        const float square = static_cast<const float*>(p.squares)[task * p.K + k];
        const float plain = square - 2.0f * cross[at * p.K + k];
        return k == own[at] ? plain + added[at] : plain;
    }
};

// One block per task.
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
        static_cast<float*>(p.bias)[task * K + k] =
            hub_bias(drawn[k], float(mean), rows) -
            half * static_cast<const float*>(p.squares)[task * K + k];
    }
}

}  // namespace

int64_t workspace_cuda(const LikelihoodParams& p, int) {
    LikelihoodParams counted = p;
    counted.workspace = nullptr;
    return LikelihoodPlan(counted).bytes;
}

void run_cuda(const LikelihoodParams& p, int device, void* stream) {
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    require(p.D <= INT32_MAX / 2 && p.R <= INT32_MAX / 2,
            "support must have fewer than 2^30 features");
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    const LikelihoodPlan plan(p);
    const LabelledPlan rows = labelled_plan(plan.labelled);
    launch_labelled(plan.labelled, rows, on);
    const auto multiply = [&](auto aligned) {
        const JudgesProduct<aligned.value> product{plan.labelled,
                                                   rows,
                                                   static_cast<float*>(p.weights),
                                                   static_cast<float*>(p.squares),
                                                   plan.own,
                                                   plan.cross,
                                                   p.R,
                                                   p.K,
                                                   p.D};
        launch_split_product(product, p.B, "split_product_kernel of likelihood", on);
    };
    const bool aligned = rows.aligned && rows_aligned(p.dtype, p.D, {p.scale, p.weights});
    aligned ? multiply(std::true_type{}) : multiply(std::false_type{});
    const LeftOutDistances source{p, plan.cross, plan.own, plan.labelled.own, plan.added};
    launch_calibrate(plan.calibrate, source, device, on);
    bias_kernel<<<grid_size(p.B), kThreads, 0, on>>>(p, plan);
    check_launch("bias_kernel");
}

}  // namespace paddle_ext
