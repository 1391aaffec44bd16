// Scaled and centred queries: one block per task; the features come from cache after the first
// pass.

#include "cuda/paddle_rows.cuh"

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
__device__ inline float measure_features(const Chunk& c, int64_t at, const DeviceRows<Feature>& row,
                                         int64_t d, bool unit_norm) {
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

// One block per task, 8 per multiprocessor: a large device runs a thousand tasks at once.
template <typename Feature>
__global__ void __launch_bounds__(kThreads, 8) scale_queries_kernel(Chunk c, bool aligned) {
    __shared__ float warp_largest[kWarps];
    const PaddleParams& p = c.call;
    const int64_t Q = p.size.Q, D = p.size.D;
    const int64_t at = blockIdx.x;
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
    largest = warp_max(largest);
    if (lane == 0) warp_largest[warp] = largest;
    __syncthreads();  // also makes mean and scale visible to all threads
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, warp_largest[i]);
    int exponent = 0;
    if (!unit_norm && largest > 0.0f && isfinite(largest)) frexpf(largest, &exponent);
    exponent = max(exponent, Range<float>::kMinExponent);
    if (threadIdx.x == 0) {
        c.exponent[at] = exponent;
        c.far[at] = 0;
    }

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
            *to =
                make_float4((x.x * norm - centre.x) * factor.x, (x.y * norm - centre.y) * factor.y,
                            (x.z * norm - centre.z) * factor.z, (x.w * norm - centre.w) * factor.w);
        }
    }
}

}  // namespace

void launch_scale_queries(const Chunk& c) {
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        launch("scale_queries_kernel", scale_queries_kernel<Feature>, c.tasks, kThreads, 0,
               c.stream, c, rows_aligned(c));
    });
}

}  // namespace paddle_ext
