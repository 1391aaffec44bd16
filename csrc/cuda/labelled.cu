// `labelled` and `coordinates` on CUDA; the algebra is in common/labelled.h.
//
// order_kernel groups the rows by class and selects the calibration rows. Two passes over the
// support follow: the first computes the norms and the centre; the second, with one warp per class,
// the norms after centring and the class means. The rest reads only the calibration rows. Sums are
// taken in a fixed order, without atomics.

#include "common/check.h"
#include "common/params.h"
#include "cuda/labelled_rows.cuh"
#include "cuda/split_rows.cuh"

namespace paddle_ext {

namespace {

// --- which rows ----------------------------------------------------------------------------------

// The sum of `value` over the threads before this one; `total` over all. Has two barriers.
__device__ int block_scan(int value, int* scratch, int& total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(kAllLanes, sum, step);
        if (lane >= step) sum += below;
    }
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    int before = 0;
    total = 0;
    for (int other = 0; other < kWarps; ++other) {
        before += other < warp ? scratch[other] : 0;
        total += scratch[other];
    }
    __syncthreads();
    return before + sum - value;
}

constexpr int kTile = 4096;  // labels in shared memory at once

// Calls body(s) for the rows of class k, in order; all threads of the block take part.
template <typename Body>
__device__ void for_each_row(const LabelledParams& p, int64_t task, int64_t k, int* tile,
                             const Body& body) {
    for (int64_t first = 0; first < p.S; first += kTile) {
        const int size = int(min(p.S - first, int64_t(kTile)));
        __syncthreads();  // the previous tile has been read
        for (int i = threadIdx.x; i < size; i += kThreads) {
            tile[i] = load_label(p.labels + task * p.S, first + i, p.K);
        }
        __syncthreads();
        if (k >= p.K) continue;
        for (int i = 0; i < size; ++i) {
            if (tile[i] == k) body(int(first) + i);
        }
    }
}

// One block per task.
__global__ void __launch_bounds__(kThreads) order_kernel(LabelledParams p, LabelledPlan plan) {
    __shared__ int scratch[kWarps];
    __shared__ int tile[kTile];
    const int64_t task = blockIdx.x, S = p.S, K = p.K;
    const int64_t* const labels = p.labels + task * S;
    float* const shots = static_cast<float*>(p.shots) + task * K;
    int* const start = plan.start + task * (K + 1);
    int* const order = plan.order + task * S;
    int done = 0;
    bool empty = false;  // whether a class of this thread is empty
    for (int64_t first = 0; first < K; first += kThreads) {
        const int64_t k = first + threadIdx.x;
        int count = 0;
        for_each_row(p, task, k, tile, [&](int) { ++count; });
        int total;
        int at = done + block_scan(count, scratch, total);
        done += total;
        if (k < K) {
            start[k] = at;
            shots[k] = float(count);
            empty |= count == 0;
        }
        for_each_row(p, task, k, tile, [&](int s) { order[at++] = s; });
    }
    if (threadIdx.x == 0) start[K] = done;
    if (done < S) {  // no other kernel writes the factors of a row without a class
        for (int64_t s = threadIdx.x; s < S; s += kThreads) {
            if (load_label(labels, s, K) >= 0) continue;
            static_cast<float*>(p.first)[task * S + s] = 0.0f;
            static_cast<float*>(p.second)[task * S + s] = 0.0f;
        }
    }
    if (p.finite != nullptr) {
        const bool complete = __syncthreads_or(empty) == 0 && done == S;
        if (threadIdx.x == 0) p.finite[task] = complete;
    }
    if (p.R == 0) {
        if (threadIdx.x == 0) p.judging[task] = 0;
        return;
    }
    __syncthreads();  // the shots are complete

    const auto eligible = [&](int64_t s) {
        const int label = s < S ? load_label(labels, s, K) : -1;
        return label >= 0 && shots[label] > 1;
    };
    int total = 0;
    for (int64_t first = 0; first < S; first += kThreads) {
        int here;
        block_scan(eligible(first + threadIdx.x), scratch, here);
        total += here;
    }
    const int64_t count = min(int64_t(total), p.R);
    if (threadIdx.x == 0) p.judging[task] = count;
    int ranked = 0;
    for (int64_t first = 0; first < S; first += kThreads) {
        const int64_t s = first + threadIdx.x;
        const bool is = eligible(s);
        int here;
        const int rank = ranked + block_scan(is, scratch, here);
        ranked += here;
        const int64_t place = is ? place_of(rank, total, count) : -1;
        if (place < 0) continue;
        plan.chosen[task * p.R + place] = int(s);
        p.own[task * p.R + place] = labels[s];
    }
    for (int64_t i = count + threadIdx.x; i < p.R; i += kThreads) {
        plan.chosen[task * p.R + i] = -1;
        p.own[task * p.R + i] = 0;
    }
}

// --- the centre --------------------------------------------------------------------------------

// The mean of the class means, from these or from partial sums of the rows; one thread per feature.
__global__ void __launch_bounds__(kThreads)
    centre_kernel(LabelledParams p, const float* from, int64_t count, float share) {
    const int64_t tiles = ceil_div(p.D, int64_t(kThreads));
    const int64_t task = blockIdx.x / tiles, d = blockIdx.x % tiles * kThreads + threadIdx.x;
    if (d >= p.D) return;
    float sum = 0;
#pragma unroll 8
    for (int64_t i = 0; i < count; ++i) sum += from[(task * count + i) * p.D + d];
    static_cast<float*>(p.centre)[task * p.D + d] =
        p.K > 1 ? sum * share : 0.0f;  // a single class is not centred
}

// --- calibration rows ---------------------------------------------------------------------------

constexpr int kScaleLanes = 128, kScaleParts = 4;  // of four features each; of the rows
constexpr int kScaleThreads = kScaleLanes * kScaleParts;
constexpr int kRowsAtATime = 256;

// The source of a calibration row.
struct Source {
    int row, own;
    float first, second;
};

// The feature scale of one row per class.
__device__ void find_one_shot_scale(const LabelledParams& p, const float* means, float* fourths,
                                    float* scale, double* scratch) {
    const int64_t K = p.K, D = p.D;
    double total = 0, scales = 0, scaled = 0;
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) {
        float square = 0, fourth = 0;
#pragma unroll 8
        for (int64_t k = 0; k < K; ++k) {
            const float x = means[k * D + d] * means[k * D + d];
            square += x;
            fourth += x * x;
        }
        scale[d] = square, fourths[d] = fourth;
        total += double(square);
    }
    total = block_sum(total, scratch);
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) {
        const double square = scale[d], rows = effective_rows(square, fourths[d]);
        const double mean = rows * total / double(K * D);
        const double found = feature_scale(rows * square / double(K), mean, rows, double(D));
        scale[d] = float(found);
        scales += found;
        scaled += found * square;
    }
    scales = block_sum(scales, scratch);
    const double factor = length_factor(total, scales, block_sum(scaled, scratch), double(D));
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) scale[d] *= float(factor);
}

// One block per task: the feature scale.
__global__ void __launch_bounds__(kScaleThreads) scale_kernel(LabelledParams p, LabelledPlan plan) {
    __shared__ double scratch[kScaleThreads / 32];
    __shared__ Source sources[kRowsAtATime];
    __shared__ __align__(16) float parts[kScaleParts][4 * kScaleLanes];
    const int lane = threadIdx.x % kScaleLanes, part = threadIdx.x / kScaleLanes;
    const int64_t task = blockIdx.x, D = p.D, count = p.judging[task];
    const float* const support = static_cast<const float*>(p.support) + task * p.S * D;
    const float* const firsts = static_cast<const float*>(p.first) + task * p.S;
    const float* const seconds = static_cast<const float*>(p.second) + task * p.S;
    const float* const centre = static_cast<const float*>(p.centre) + task * D;
    const float* const means = static_cast<const float*>(p.means) + task * p.K * D;
    const float* const shots = static_cast<const float*>(p.shots) + task * p.K;
    const int64_t* const own = p.own + task * p.R;
    float* const scale = static_cast<float*>(p.scale) + task * D;
    if (p.R == 0) {
        float* const fourths = plan.sums + task * plan.parts * D;
        return find_one_shot_scale(p, means, fourths, scale, scratch);
    }
    double degrees = 0, mean = 0, sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += kScaleThreads) {
        degrees += 1 - 1 / double(shots[own[i]]);
    }
    degrees = block_sum(degrees, scratch);
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) scale[d] = 0;
    for (int64_t start = 0; start < count; start += kRowsAtATime) {
        const int size = int(min(count - start, int64_t(kRowsAtATime)));
        __syncthreads();  // the previous rows have been read
        for (int i = threadIdx.x; i < size; i += kScaleThreads) {
            const int row = plan.chosen[task * p.R + start + i];
            sources[i] = {row, int(own[start + i]), firsts[row], seconds[row]};
        }
        __syncthreads();
        for (int64_t first = 0; first < D; first += 4 * kScaleLanes) {
            const int64_t d = first + 4 * lane;
            const float4 c = load_row4(centre, d, D, plan.aligned);
            float4 scatter = make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (int i = part; i < size; i += kScaleParts) {
                const Source from = sources[i];
                const float4 row = load_row4(support + from.row * D, d, D, plan.aligned);
                const float4 x = centred(row, from.first, c);
                const float4 w = load_row4(means + from.own * D, d, D, plan.aligned);
                const float4 away = x * from.second - w;
                scatter = scatter + away * away;
            }
            *reinterpret_cast<float4*>(parts[part] + 4 * lane) = scatter;
            __syncthreads();
            const int64_t mine = first + threadIdx.x;  // as many features as threads
            for (int i = 0; i < kScaleParts && mine < D; ++i) scale[mine] += parts[i][threadIdx.x];
            __syncthreads();
        }
    }
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) mean += double(scale[d]);
    mean = block_sum(mean, scratch) / double(D);
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) {
        const double found = feature_scale(double(scale[d]), mean, degrees, double(D));
        scale[d] = float(found);
        sum += found;
    }
    sum = block_sum(sum, scratch);
    for (int64_t d = threadIdx.x; d < D; d += kScaleThreads) {
        scale[d] = float(double(scale[d]) * double(D) / sum);
    }
}

// --- query rows ---------------------------------------------------------------------------------

// 1 / norm of (row times `first` minus the centre).
__device__ float second_norm(const float* row, float first, const float* centre, int64_t D,
                             bool aligned) {
    float sum = 0;
    for (int64_t d = 4 * (threadIdx.x % 32); d < D; d += 128) {
        const float4 c = load_row4(centre, d, D, aligned);
        sum += squared_norm(centred(load_row4(row, d, D, aligned), first, c));
    }
    return inverse_of_centred(warp_sum(sum));
}

// One warp per row.
__global__ void __launch_bounds__(kThreads) coordinates_kernel(CoordinatesParams p, bool aligned) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * p.N) return;
    const int64_t D = p.D, task = p.shared ? 0 : item / p.N;
    const auto of_task = [&](const void* all) {
        return all == nullptr ? nullptr : static_cast<const float*>(all) + task * D;
    };
    const float *const centre = of_task(p.centre), *const scale = of_task(p.scale);
    const float* const row = static_cast<const float*>(p.rows) + item * D;
    float first = 1, second = 1;
    if (centre != nullptr) {
        first = warp_inverse_norm(row, D, aligned);
        second = second_norm(row, first, centre, D, aligned);
    }
    const int64_t end = p.split ? row_numbers(D) : D;
    for (int64_t d = 4 * (threadIdx.x % 32); d < end; d += 128) {
        float4 x = load_row4(row, d, D, aligned);
        if (centre != nullptr) x = centred(x, first, load_row4(centre, d, D, aligned));
        float4 s = make_float4(1, 1, 1, 1);
        if (scale != nullptr) s = load_row4(scale, d, D, aligned);
        const float4 out = x * second * roots_approx(s);
        if (p.split) {
            store_row4(static_cast<__half*>(p.x) + item * row_halves(D), d, out);
        } else {
            store_row4(static_cast<float*>(p.x) + item * D, d, D, aligned, out);
        }
    }
    if (threadIdx.x % 32 == 0 && p.finite != nullptr && !plainly_finite(first)) {
        p.finite[item / p.N] = false;
    }
}

}  // namespace

int64_t workspace_cuda(const LabelledParams& p, int) { return LabelledPlan(p, false).bytes; }

LabelledPlan labelled_plan(const LabelledParams& p) {
    return {p, rows_aligned(p.dtype, p.D, {p.support, p.centre, p.means})};
}

void launch_labelled(const LabelledParams& p, const LabelledPlan& plan, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "support on CUDA must be float32 for the native code");
    require(p.S <= INT32_MAX && p.K < INT32_MAX, "support must have fewer than 2^31 rows");
    const bool held = rows_held(p.D) > 0;
    launch("order_kernel", order_kernel, p.B, kThreads, 0, stream, p, plan);
    held ? launch_rows(p, plan, stream) : launch_means<false>(p, plan, stream);
    launch("centre_kernel", centre_kernel, p.B * ceil_div(p.D, kThreads), kThreads, 0, stream, p,
           held ? plan.sums : static_cast<const float*>(p.means), held ? plan.parts : p.K,
           held ? 1.0f : 1.0f / float(p.K));
    launch_means<true>(p, plan, stream);
    launch("scale_kernel", scale_kernel, p.B, kScaleThreads, 0, stream, p, plan);
}

void run_cuda(const LabelledParams& p, int device, void* stream) {
    require_workspace(p.workspace_bytes, workspace_cuda(p, device));
    const DeviceGuard guard(device);
    launch_labelled(p, labelled_plan(p), static_cast<cudaStream_t>(stream));
}

int64_t workspace_cuda(const CoordinatesParams&, int) { return 0; }

void run_cuda(const CoordinatesParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    const DeviceGuard guard(device);
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows, p.centre, p.scale, p.x});
    launch("coordinates_kernel", coordinates_kernel, ceil_div(p.B * p.N, kWarps), kThreads, 0,
           stream, p, aligned);
}

}  // namespace paddle_ext
