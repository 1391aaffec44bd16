// `labelled` and `coordinates` on CUDA; the algebra is in common/adaptive.h.
//
// One kernel groups the rows by class and selects the calibration rows, then passes over the support
// twice: for the norms and the centre, and with one warp per class for the norms after centring and
// the class means. The feature scale reads only the calibration rows. Sums are taken in a fixed
// order, without atomics, whatever the number of blocks.

#include "cuda/adaptive/labelled.cuh"
#include "cuda/mma.cuh"

namespace paddle_ext {

namespace {

// --- calibration rows ---------------------------------------------------------------------------

constexpr int kScaleParts = 2, kScaleLanes = kThreads / kScaleParts;  // of the rows; of 4 features
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
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
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
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        const double square = scale[d], rows = effective_rows(square, fourths[d]);
        const double mean = rows * total / double(K * D);
        const double found = feature_scale(rows * square / double(K), mean, rows, double(D));
        scale[d] = float(found);
        scales += found;
        scaled += found * square;
    }
    scales = block_sum(scales, scratch);
    const double factor = length_factor(total, scales, block_sum(scaled, scratch), double(D));
    for (int64_t d = threadIdx.x; d < D; d += kThreads) scale[d] *= float(factor);
}

// The feature scale, by one block.
__device__ void find_scale(const LabelledPlan& p, int64_t task) {
    __shared__ double scratch[kThreads / 32];
    __shared__ Source sources[kRowsAtATime];
    __shared__ __align__(16) float parts[kScaleParts][4 * kScaleLanes];
    const int lane = threadIdx.x % kScaleLanes, part = threadIdx.x / kScaleLanes;
    const int64_t D = p.D, count = p.count[task];
    const float* const support = floats(p.support, task * p.S * D);
    const float* const firsts = floats(p.first, task * p.S);
    const float* const seconds = floats(p.second, task * p.S);
    const float* const centre = floats(p.centre, task * D);
    const float* const means = floats(p.means, task * p.K * D);
    const float* const shots = floats(p.shots, task * p.K);
    const int64_t* const own = p.own + task * p.R;
    float* const scale = floats(p.scale, task * D);
    if (p.R == 0) {
        float* const fourths = p.sums + task * p.parts * D;
        return find_one_shot_scale(p, means, fourths, scale, scratch);
    }
    double degrees = 0, mean = 0, sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += kThreads) {
        degrees += 1 - 1 / double(shots[own[i]]);
    }
    degrees = block_sum(degrees, scratch);
    for (int64_t d = threadIdx.x; d < D; d += kThreads) scale[d] = 0;
    for (int64_t start = 0; start < count; start += kRowsAtATime) {
        const int size = int(min(count - start, int64_t(kRowsAtATime)));
        __syncthreads();  // the previous rows have been read
        for (int i = threadIdx.x; i < size; i += kThreads) {
            const int row = p.chosen[task * p.R + start + i];
            sources[i] = {row, int(own[start + i]), firsts[row], seconds[row]};
        }
        __syncthreads();
        for (int64_t first = 0; first < D; first += 4 * kScaleLanes) {
            const int64_t d = first + 4 * lane;
            const float4 c = load_row4(centre, d, D, p.aligned);
            float4 scatter = make_float4(0, 0, 0, 0);
#pragma unroll 4
            for (int i = part; i < size; i += kScaleParts) {
                const Source from = sources[i];
                const float4 row = load_row4(support + from.row * D, d, D, p.aligned);
                const float4 x = centred(row, from.first, c);
                const float4 w = load_row4(means + from.own * D, d, D, p.aligned);
                const float4 away = x * from.second - w;
                scatter = scatter + away * away;
            }
            *reinterpret_cast<float4*>(parts[part] + 4 * lane) = scatter;
            __syncthreads();
            for (int i = threadIdx.x; i < 4 * kScaleLanes && first + i < D; i += kThreads) {
                for (int other = 0; other < kScaleParts; ++other)
                    scale[first + i] += parts[other][i];
            }
            __syncthreads();
        }
    }
    for (int64_t d = threadIdx.x; d < D; d += kThreads) mean += double(scale[d]);
    mean = block_sum(mean, scratch) / double(D);
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        const double found = feature_scale(double(scale[d]), mean, degrees, double(D));
        scale[d] = float(found);
        sum += found;
    }
    sum = block_sum(sum, scratch);
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        scale[d] = float(double(scale[d]) * double(D) / sum);
    }
}

// --- all of it ----------------------------------------------------------------------------------

// By one block per task, or a team of blocks if there are few tasks.
template <int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld <= 4 ? 3 : 1)
    labelled_kernel(LabelledPlan p, int blocks) {
    const int64_t task = blockIdx.x / blocks, D = p.D;
    const int rank = int(blockIdx.x % blocks);
    Team team = blocks == 1 ? Team() : Team(p.teams + task, rank, blocks);
    const auto each_class = [&](const auto& body) {  // one warp each
        for (int64_t k = team.thread / 32; k < p.K; k += team.threads / 32) {
            body(ClassRows(p, task, k));
        }
        team.sync();
    };
    if (rank == 0) order_rows(p, task);
    team.sync();
    if constexpr (kHeld > 0) {
        for (int64_t part = rank; part < p.parts; part += blocks) {
            sum_rows<kHeld>(p, task, part);
        }
        team.sync();
    } else {
        each_class([&](const ClassRows& c) { find_long_mean<false>(c); });
    }
    // The mean of the class means: from sums of rows, or from the means. A single class is not
    // centred.
    const float* const from = kHeld > 0 ? p.sums : floats(p.means);
    const int64_t count = kHeld > 0 ? p.parts : p.K;
    const float share = kHeld > 0 ? 1.0f : 1.0f / float(p.K);
    for (int64_t d = team.thread; d < D; d += team.threads) {
        float sum = 0;
#pragma unroll 8
        for (int64_t i = 0; i < count; ++i) sum += from[(task * count + i) * D + d];
        floats(p.centre)[task * D + d] = p.K > 1 ? sum * share : 0.0f;
    }
    team.sync();
    each_class([&](const ClassRows& c) {
        if constexpr (kHeld > 0) {
            find_mean<kHeld>(c);
        } else {
            find_long_mean<true>(c);
        }
    });
    if (rank == 0) find_scale(p, task);
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
        return all == nullptr ? nullptr : floats(all, task * D);
    };
    const float *const centre = of_task(p.centre), *const scale = of_task(p.scale);
    const float* const row = floats(p.rows, item * D);
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
            store_row4(floats(p.x, item * D), d, D, aligned, out);
        }
    }
    if (threadIdx.x % 32 == 0 && p.finite != nullptr && !plainly_finite(first)) {
        p.finite[item / p.N] = false;
    }
}

}  // namespace

int64_t workspace_cuda(const LabelledParams& p) { return LabelledPlan{p}.arena.used(); }

void launch_labelled(const LabelledPlan& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "support on CUDA must be float32 for the native code");
    require(p.S <= INT32_MAX && p.K < INT32_MAX, "support must have fewer than 2^31 rows");
    const int held = rows_held(p.D);
    const auto kernel = held == 1   ? labelled_kernel<1>
                        : held == 4 ? labelled_kernel<4>
                        : held == 8 ? labelled_kernel<8>
                                    : labelled_kernel<0>;
    const int64_t useful = max(p.parts, ceil_div(p.K, kWarps));
    launch_teams("labelled_kernel", kernel, p.B, useful, kThreads, row_sums_bytes(p.D), p.teams,
                 stream, p);
}

void run_cuda(const LabelledParams& p, cudaStream_t stream) {
    require_workspace(p.workspace_bytes, workspace_cuda(p));
    launch_labelled(LabelledPlan{p}, stream);
}

void run_cuda(const CoordinatesParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows, p.centre, p.scale, p.x});
    launch("coordinates_kernel", coordinates_kernel, ceil_div(p.B * p.N, kWarps), kThreads, 0,
           stream, p, aligned);
}

}  // namespace paddle_ext
