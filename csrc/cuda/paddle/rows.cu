// Scaled and centred queries: one block per task; the features come from cache after the first
// pass.

#include "cuda/paddle/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Like load_row4, for numbers that this kernel has written: bypasses the read-only cache.
__device__ inline float4 load_written4(const float* row, int64_t d, int64_t D, bool aligned) {
    if (aligned && d < D) return *reinterpret_cast<const float4*>(row + d);
    return make_float4(d < D ? row[d] : 0.0f, d + 1 < D ? row[d + 1] : 0.0f,
                       d + 2 < D ? row[d + 2] : 0.0f, d + 3 < D ? row[d + 3] : 0.0f);
}

// Mean and range of Width neighbouring features, relative to the first row: a common offset costs
// no precision. Returns the size of the scaled, centred features.
template <int Width, typename Feature>
__device__ inline float measure_features(const Chunk& c, int64_t at,
                                         const FeatureRows<Feature>& row, int64_t d,
                                         bool unit_norm) {
    const PaddleParams& p = c.call;
    const int64_t Q = p.size.Q, D = p.size.D;
    const float* const norms = c.norms + at * Q;
    float first[Width], sum[Width] = {}, low[Width] = {}, high[Width] = {};
    load_features(row(0) + d, first);
#pragma unroll
    for (int i = 0; i < Width; ++i) first[i] *= unit_norm ? norms[0] : 1.0f;
#pragma unroll 8
    for (int64_t q = 1; q < Q; ++q) {
        const float norm = unit_norm ? norms[q] : 1.0f;
        float x[Width];
        load_features(row(q) + d, x);
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            const float away = x[i] * norm - first[i];
            sum[i] += away;
            low[i] = fminf(low[i], away);
            high[i] = fmaxf(high[i], away);
        }
    }
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < Width; ++i) {
        const float offset = sum[i] / float(Q), centre = first[i] + offset;
        const float range = high[i] - low[i];
        const bool spread =
            p.scaling == Scaling::kMinMax && range > float(Range<float>::kMinSpread);
        const float factor = spread ? 1.0f / range : 1.0f;
        const float hidden = fabsf(centre) * float(Range<float>::kOffsetResolution);
        const float reach = fmaxf(fmaxf(high[i] - offset, offset - low[i]), hidden);
        largest = fmaxf(largest, factor * reach);
        c.mean[at * D + d + i] = centre;
        c.scale[at * D + d + i] = factor;
    }
    return largest;
}

// One block per task, so many per multiprocessor: a large device runs a thousand tasks at once.
#if __CUDA_ARCH__ % 100 == 0 && __CUDA_ARCH__ < 1100  // 2048 threads fit, elsewhere 1536
constexpr int kTasks = 2048 / kThreads;
#else
constexpr int kTasks = 1536 / kThreads;
#endif
template <typename Feature>
__global__ void __launch_bounds__(kThreads, kTasks) scale_queries_kernel(Chunk c, bool aligned) {
    __shared__ float warp_largest[kWarps];
    const PaddleParams& p = c.call;
    const int64_t Q = p.size.Q, D = p.size.D, at = blockIdx.x;
    const auto row = query_rows<Feature>(p, c.first + at);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const norms = c.norms + at * Q;
    float* const mean = c.mean + at * D;
    float* const scale = c.scale + at * D;
    const bool unit_norm = p.scaling == Scaling::kAuto;

    // 1) Norms of the rows.
    if (unit_norm) {
        for (int64_t q = warp; q < Q; q += kWarps) {
            const float norm = warp_inverse_norm(row(q), D, aligned);
            if (lane == 0) norms[q] = norm;
        }
        __syncthreads();  // every thread reads all norms below
    }

    // 2) Mean and range of every feature.
    float largest = 0.0f;
    if (aligned) {
        for (int64_t d = 2 * threadIdx.x; d < D; d += 2 * kThreads) {
            largest = fmaxf(largest, measure_features<2>(c, at, row, d, unit_norm));
        }
    } else {
        for (int64_t d = threadIdx.x; d < D; d += kThreads) {
            largest = fmaxf(largest, measure_features<1>(c, at, row, d, unit_norm));
        }
    }

    // 3) A power of two brings the task near one: exact, and squares can neither overflow nor
    //    vanish. "auto" is near one already.
    largest = block_max(largest, warp_largest);  // also makes mean and scale visible to all threads
    int exponent = 0;
    if (!unit_norm && largest > 0.0f && isfinite(largest)) frexpf(largest, &exponent);
    exponent = max(exponent, Range<float>::kMinExponent);
    if (threadIdx.x == 0) c.exponent[at] = exponent, c.far[at] = 0;
    for (int64_t d = threadIdx.x; d < D; d += kThreads) scale[d] = ldexpf(scale[d], -exponent);
    __syncthreads();  // the scale of all features is final

    // 4) The scaled queries, one warp per row; rows are padded with zeros.
    for (int64_t q = warp; q < Q; q += kWarps) {
        const float norm = unit_norm ? norms[q] : 1.0f;
        for (int64_t d = 4 * lane; d < c.plan.Dp; d += 128) {
            const float4 x = load_row4(row(q), d, D, aligned);
            const float4 centre = load_written4(mean, d, D, aligned);
            const float4 factor = load_written4(scale, d, D, aligned);
            float4* const to = reinterpret_cast<float4*>(c.z + (at * Q + q) * c.plan.Dp + d);
            *to = (x * norm - centre) * factor;
        }
    }
}

// --- class sums of the support -------------------------------------------------------------------
//
// The memory pass that dominates the solve; each row is read once.

// The first row of a support that all tasks share, used to shift its sums.
template <typename Feature>
__global__ void first_row_kernel(Chunk c, bool aligned) {
    const Feature* const row = support_rows<Feature>(c.call, 0)(0);
    const bool unit_norm = c.call.scaling == Scaling::kAuto;
    const float norm = unit_norm ? warp_inverse_norm(row, c.D, aligned) : 1.0f;
    for (int64_t d = threadIdx.x; d < c.D; d += 32) c.shift[d] = to_float(row[d]) * norm;
}

__global__ void __launch_bounds__(32 * kOrderWarps) order_support_kernel(Chunk c) {
    const int64_t at = blockIdx.x, task = c.one_support ? 0 : c.first + at;
    order_by_class(c.call.support_labels + task * c.S, c.S, c.K, c.tallies + at * kOrderWarps * c.K,
                   c.order + at * c.S, c.start + at * (c.K + 1));
}

// Returns the number, and sets a flag if it is beyond kFarAway.
__device__ float keep_finite(float sum, float shots, int* far) {
    if (fabsf(sum) > float(Range<float>::kFarAway) * fmaxf(shots, 1.0f)) *far = 1;
    return fminf(fmaxf(sum, Range<float>::kMinusInfinity), Range<float>::kInfinity);
}

// Adds one row to the sums of a warp.
template <int Pieces>
__device__ void add_row(float4 (&sum)[Pieces], const float4 (&value)[Pieces], float norm,
                        const float4 (&shift)[Pieces]) {
#pragma unroll
    for (int i = 0; i < Pieces; ++i) sum[i] = sum[i] + (value[i] * norm - shift[i]);
}

// One warp per class and slice of 128 * Pieces features, two rows in flight. The sums of a shared
// support are not scaled.
template <typename Feature, int Pieces>
__global__ void __launch_bounds__(kThreads) class_sums_kernel(Chunk c, bool aligned) {
    const TaskSizes& n = c.call.size;
    const bool unit_norm = c.call.scaling == Scaling::kAuto;
    const int lane = threadIdx.x % 32;
    const int64_t slices = ceil_div(c.plan.Dp, int64_t(128 * Pieces));
    const int64_t unit = (blockIdx.x * int64_t(kWarps) + threadIdx.x / 32);
    const int64_t tasks = n.support_shared ? 1 : c.tasks;
    const int64_t k = unit % n.K, slice = unit / n.K % slices, at = unit / n.K / slices;
    if (at >= tasks) return;
    const auto row = support_rows<Feature>(c.call, n.support_shared ? 0 : c.first + at);
    const int* const order = c.order + at * n.S;
    const int first = c.start[at * (n.K + 1) + k], end = c.start[at * (n.K + 1) + k + 1];
    const int64_t begin = slice * 128 * Pieces + 4 * lane;
    const float shots = float(end - first);

    float4 shift[Pieces], sum[Pieces];
#pragma unroll
    for (int i = 0; i < Pieces; ++i) {
        const float* const from = c.one_support ? c.shift : c.mean + at * n.D;
        shift[i] = load_row4(from, begin + 128 * i, n.D, aligned);
        sum[i] = make_float4(0, 0, 0, 0);
    }
    const auto fetch = [&](const Feature* x, float4(&value)[Pieces]) {
#pragma unroll
        for (int i = 0; i < Pieces; ++i) value[i] = load_row4(x, begin + 128 * i, n.D, aligned);
    };
    const auto norm_of = [&](const Feature* x, const float4(&value)[Pieces]) {
        if (!unit_norm) return 1.0f;
        if (slices > 1) return warp_inverse_norm(x, n.D, aligned);
        float squared = 0.0f;
#pragma unroll
        for (int i = 0; i < Pieces; ++i) squared += squared_norm(value[i]);
        return inverse_norm(x, n.D, aligned, warp_sum(squared));
    };
    for (int base = first; base < end; base += 32) {
        const int count = min(end - base, 32);
        const auto mine =
            reinterpret_cast<unsigned long long>(lane < count ? row(order[base + lane]) : nullptr);
        for (int j = 0; j < count; j += 2) {
            const bool pair = j + 1 < count;
            const auto* x = reinterpret_cast<const Feature*>(__shfl_sync(kAllLanes, mine, j));
            const auto* y =
                reinterpret_cast<const Feature*>(__shfl_sync(kAllLanes, mine, pair ? j + 1 : j));
            float4 a[Pieces], b[Pieces];
            fetch(x, a);
            if (pair) fetch(y, b);
            add_row(sum, a, norm_of(x, a), shift);
            if (pair) add_row(sum, b, norm_of(y, b), shift);
        }
    }
    float* const to = (c.one_support ? c.shared_sums : c.sums) + (at * n.K + k) * c.plan.Dp;
#pragma unroll
    for (int i = 0; i < Pieces; ++i) {
        const int64_t d = begin + 128 * i;
        if (d >= c.plan.Dp) continue;
        if (!c.one_support) {
            const float4 scale = load_row4(c.scale + at * n.D, d, n.D, aligned);
            sum[i].x = keep_finite(sum[i].x * scale.x, shots, c.far + at);
            sum[i].y = keep_finite(sum[i].y * scale.y, shots, c.far + at);
            sum[i].z = keep_finite(sum[i].z * scale.z, shots, c.far + at);
            sum[i].w = keep_finite(sum[i].w * scale.w, shots, c.far + at);
        }
        *reinterpret_cast<float4*>(to + d) = sum[i];
    }
    if (lane == 0 && slice == 0) c.count[at * n.K + k] = shots;
}

// The sums of a shared support in the coordinates of each task: one block per task and class.
__global__ void move_sums_kernel(Chunk c) {
    const TaskSizes& n = c.call.size;
    const int64_t at = blockIdx.x / n.K, k = blockIdx.x % n.K, Dp = c.plan.Dp;
    const float shots = c.count[k];
    for (int64_t d = threadIdx.x; d < Dp; d += blockDim.x) {
        float value = 0.0f;
        if (d < n.D) {
            value = c.shared_sums[k * Dp + d] - shots * (c.mean[at * n.D + d] - c.shift[d]);
            value = keep_finite(value * c.scale[at * n.D + d], shots, c.far + at);
        }
        c.sums[(at * n.K + k) * Dp + d] = value;
    }
}

// For prototypes beyond kFarAway: a larger unit if the task needs it, and a clamp for those still
// beyond (common/math.h). One block per task, which usually has nothing to do.
__global__ void __launch_bounds__(kThreads) bound_sums_kernel(Chunk c) {
    __shared__ float scratch[kWarps];
    const TaskSizes& n = c.call.size;
    const int64_t at = blockIdx.x, Dp = c.plan.Dp;
    if (c.far[at] == 0) return;
    const float* const count = c.count + (n.support_shared ? 0 : at * n.K);
    float* const sums = c.sums + at * n.K * Dp;
    float most = 0.0f;
    for (int64_t i = threadIdx.x; i < n.K * Dp; i += kThreads) {
        most = fmaxf(most, fabsf(sums[i]) / safe_mass(count[i / Dp]));
    }
    const double farthest = block_max(most, scratch);
    double reach = farthest;
    if (is_decisive<float>(c.call.temperature, ldexp(1.0, c.exponent[at]))) {
        float nearest = Range<float>::kInfinity;
        for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
            double squared = 0.0;
            for (int64_t d = 0; d < Dp; ++d) {
                const double share = double(sums[k * Dp + d]) / farthest;
                squared += share * share;
            }
            const double length = sqrt(squared) / double(safe_mass(count[k])) * farthest;
            nearest = fminf(nearest, float(fmin(length, double(Range<float>::kInfinity))));
        }
        reach = -kNearFar * double(block_max(-nearest, scratch));
    }
    const int exponent = exponent_beyond<float>(reach);
    const double down = ldexp(1.0, -exponent);
    for (int64_t i = threadIdx.x; i < n.K * Dp; i += kThreads) {
        const float bound = float(Range<float>::kFarAway) * safe_mass(count[i / Dp]);
        sums[i] = fminf(fmaxf(float(double(sums[i]) * down), -bound), bound);
    }
    float* const z = c.z + at * n.Q * Dp;
    for (int64_t i = threadIdx.x; exponent > 0 && i < n.Q * Dp; i += kThreads) {
        z[i] = float(double(z[i]) * down);
    }
    __syncthreads();  // all have read it
    if (threadIdx.x == 0) c.exponent[at] += exponent;
}

// Prototypes in the coordinates of the inputs: one block per class.
template <typename Feature>
__global__ void __launch_bounds__(kThreads) prototypes_kernel(Chunk c) {
    __shared__ float weight[kThreads];
    const TaskSizes& n = c.call.size;
    const int64_t at = blockIdx.x / n.K, k = blockIdx.x % n.K, task = c.first + at;
    const int64_t own = n.support_shared ? 0 : at;
    const auto row = query_rows<Feature>(c.call, task), known = support_rows<Feature>(c.call, task);
    const float* const u = floats(c.call.probabilities, task * n.Q * n.K + k);
    const int* const order = c.order + own * n.S;
    const int first = c.start[own * (n.K + 1) + k], last = c.start[own * (n.K + 1) + k + 1];
    float* const out = floats(c.call.prototypes, (task * n.K + k) * n.D);
    for (int64_t d0 = 0; d0 < n.D; d0 += kThreads) {
        const int64_t d = d0 + threadIdx.x;
        const float from = d < n.D ? to_float(row(0)[d]) : 0.0f;
        // Thousands of queries may each hold next to nothing but together something. Added to the
        // support one by one they would be lost in rounding: so partial sums first, and the support
        // last.
        float sum = 0.0f, mass = 0.0f;
        for (int64_t q0 = 0; q0 < n.Q; q0 += kThreads) {
            __syncthreads();  // the weights of the last round have been read
            weight[threadIdx.x] = q0 + threadIdx.x < n.Q ? u[(q0 + threadIdx.x) * n.K] : 0.0f;
            __syncthreads();
            const int count = int(min(n.Q - q0, int64_t(kThreads)));
            float some = 0.0f, some_mass = 0.0f;
            for (int i = 0; i < count; ++i) {
                some_mass += weight[i];
                if (weight[i] > 0.0f && d < n.D) {
                    some += weight[i] * (to_float(row(q0 + i)[d]) - from);
                }
            }
            sum += some;
            mass += some_mass;
        }
        float labelled = 0.0f;
        for (int i = first; d < n.D && i < last; ++i)
            labelled += to_float(known(order[i])[d]) - from;
        if (d < n.D) out[d] = from + (sum + labelled) / safe_mass(mass + float(last - first));
    }
}

template <typename Feature, int Pieces>
void launch_pieces(const Chunk& c) {
    const int64_t slices = ceil_div(c.plan.Dp, 128 * Pieces);
    const int64_t warps = (c.call.size.support_shared ? 1 : c.tasks) * slices * c.call.size.K;
    launch("class_sums_kernel", class_sums_kernel<Feature, Pieces>, ceil_div(warps, kWarps),
           kThreads, 0, c.stream, c, rows_aligned(c));
}

template <typename Feature>
void launch_sums(const Chunk& c) {
    const int64_t pieces = ceil_div(c.plan.Dp, int64_t(128));
    if (pieces <= 1) return launch_pieces<Feature, 1>(c);
    if (pieces <= 2) return launch_pieces<Feature, 2>(c);
    if (pieces <= 4) return launch_pieces<Feature, 4>(c);
    if (pieces <= 6) return launch_pieces<Feature, 6>(c);
    launch_pieces<Feature, 8>(c);
}

}  // namespace

void launch_scale_queries(const Chunk& c) {
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        launch("scale_queries_kernel", scale_queries_kernel<Feature>, c.tasks, kThreads, 0,
               c.stream, c, rows_aligned(c));
    });
}

void launch_class_sums(const Chunk& c) {
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        if (!c.one_support || c.first == 0) {
            if (c.one_support) {
                launch("first_row_kernel", first_row_kernel<Feature>, 1, 32, 0, c.stream, c,
                       rows_aligned(c));
            }
            launch("order_support_kernel", order_support_kernel, c.one_support ? 1 : c.tasks,
                   32 * kOrderWarps, 0, c.stream, c);
            launch_sums<Feature>(c);
        }
    });
    if (c.one_support) {
        launch("move_sums_kernel", move_sums_kernel, c.tasks * c.K, 128, 0, c.stream, c);
    }
    if (c.call.scaling == Scaling::kAuto) return;  // nothing is far
    launch("bound_sums_kernel", bound_sums_kernel, c.tasks, kThreads, 0, c.stream, c);
}

void launch_prototypes(const Chunk& c) {
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        launch("prototypes_kernel", prototypes_kernel<Feature>, c.tasks * c.K, kThreads, 0,
               c.stream, c);
    });
}

}  // namespace paddle_ext
