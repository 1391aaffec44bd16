// Scaled and centred queries: one block per task, the features from cache after the first pass.

#include "cuda/paddle_rows.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// One block per task.
template <typename Feature>
__global__ void __launch_bounds__(kThreads) scale_queries_kernel(Chunk c, bool aligned) {
    __shared__ float warp_largest[kWarps];
    const PaddleParams& p = c.call;
    const int64_t Q = p.size.Q, D = p.size.D;
    const int64_t at = blockIdx.x;
    const auto row = query_rows<Feature>(p, c.first + at);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* const norms = c.norms + at * Q;
    float* const mean = c.mean + at * D;
    float* const scale = c.scale + at * D;
    const bool unit_norm = p.scaling >= Scaling::kAuto;

    // 1) Norms of the rows.
    if (unit_norm) {
        for (int64_t q = warp; q < Q; q += kWarps) {
            const float norm = warp_inverse_norm(row(q), D, aligned);
            if (lane == 0) norms[q] = norm;
        }
        __syncthreads();  // below every thread reads all norms
    }

    // 2) Mean and range of every feature, relative to the first row: a common offset costs nothing.
    float largest = 0.0f;
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        const float first = to_float(row(0)[d]) * (unit_norm ? norms[0] : 1.0f);
        float sum = 0.0f, low = 0.0f, high = 0.0f;
#pragma unroll 8
        for (int64_t q = 1; q < Q; ++q) {
            const float x = to_float(row(q)[d]) * (unit_norm ? norms[q] : 1.0f) - first;
            sum += x;
            low = fminf(low, x);
            high = fmaxf(high, x);
        }
        const float offset = sum / float(Q), centre = first + offset;
        const bool spread =
            p.scaling == Scaling::kMinMax && high - low > float(Range<float>::kMinSpread);
        const float factor = spread ? 1.0f / (high - low) : 1.0f;
        const float hidden = fabsf(centre) * float(Range<float>::kOffsetResolution);
        largest = fmaxf(largest, factor * fmaxf(fmaxf(high - offset, offset - low), hidden));
        mean[d] = centre;
        scale[d] = factor;
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
    if (threadIdx.x == 0) c.exponent[at] = exponent;

    // 4) The scaled queries; rows end in zeros.
    const int64_t groups = c.plan.Dp / 4;
    for (int64_t i = threadIdx.x; i < Q * groups; i += kThreads) {
        const int64_t q = i / groups, d = i % groups * 4;
        const float norm = unit_norm ? norms[q] : 1.0f;
        const float4 x = load_row4(row(q), d, D, aligned);
        const float in[4] = {x.x, x.y, x.z, x.w};
        float out[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            out[j] =
                d + j < D ? (in[j] * norm - mean[d + j]) * ldexpf(scale[d + j], -exponent) : 0.0f;
        }
        float4* const to = reinterpret_cast<float4*>(c.z + (at * Q + q) * c.plan.Dp + d);
        *to = make_float4(out[0], out[1], out[2], out[3]);
    }
    __syncthreads();  // scale is read above, so its final value comes last
    for (int64_t d = threadIdx.x; d < D; d += kThreads) scale[d] = ldexpf(scale[d], -exponent);
}

}  // namespace

void launch_scale_queries(const Chunk& c) {
    with_feature_type(c.call.dtype, [&](auto* type) {
        using Feature = std::remove_pointer_t<decltype(type)>;
        scale_queries_kernel<Feature>
            <<<grid_size(c.tasks), kThreads, 0, c.stream>>>(c, rows_aligned(c));
    });
    check_launch("scale_queries_kernel");
}

}  // namespace paddle_ext
