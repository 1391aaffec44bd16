// Rows of large tasks as halves, for products on tensor cores. One warp per row.

#include "common/check.h"
#include "common/device.cuh"
#include "common/labelled.h"
#include "common/large.h"
#include "common/reduce.cuh"
#include "common/rows.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ void store4(__half* to, float4 x, bool aligned, int64_t left) {
    const __half2 first = __floats2half2_rn(x.x, x.y), second = __floats2half2_rn(x.z, x.w);
    if (aligned) {
        uint2 raw;
        raw.x = *reinterpret_cast<const unsigned*>(&first);
        raw.y = *reinterpret_cast<const unsigned*>(&second);
        *reinterpret_cast<uint2*>(to) = raw;
        return;
    }
    to[0] = first.x;
    if (left > 1) to[1] = first.y;
    if (left > 2) to[2] = second.x;
    if (left > 3) to[3] = second.y;
}

__device__ float low_of(float x) { return x - __half2float(__float2half_rn(x)); }

// A row minus the centre.
template <typename Feature>
struct Centred {
    const Feature* row;
    const float *scale, *centre;
    float length;
    int64_t D;
    bool aligned;

    __device__ float4 operator()(int64_t d) const {
        const float4 x = load_row4(row, d, D, aligned);
        const float4 s = load_row4(scale, d, D, aligned), c = load_row4(centre, d, D, aligned);
        return x * length * s - c;
    }
};

// 1 / norm, by one warp.
template <typename Feature>
__device__ float inverse_norm_of(const Centred<Feature>& x) {
    float sum = 0;
    for (int64_t d = threadIdx.x % 32 * 4; d < x.D; d += 128) sum += squared_norm(x(d));
    return inverse_of_centred(warp_sum(sum));
}

template <typename Feature, bool kUnit>
__global__ void __launch_bounds__(kThreads) split_kernel(SplitParams p, bool aligned) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, D = p.D;
    if (row >= p.B * p.N) return;
    const int64_t task = row / p.N;
    const int lane = threadIdx.x % 32;
    __half* const to = static_cast<__half*>(p.out) + row * p.pieces * D;
    const Feature* const from = static_cast<const Feature*>(p.rows) + row * D;
    Centred<Feature> x{from, p.scale + task * D, p.centre + task * D, 1.0f, D, aligned};
    if (kUnit) {
        x.length = warp_inverse_norm(from, D, aligned);
    } else if (p.length != nullptr) {
        x.length = p.length[row];
    }
    const float unit = kUnit ? inverse_norm_of(x) : 1.0f;
    float own = 0;
    for (int64_t d = lane * 4; d < D; d += 128) {
        float4 v = x(d);
        if (kUnit) {
            v = v * unit;
            if (p.own != nullptr) {
                const float4 m = load_row4(p.metric + task * D, d, D, aligned);
                own += v.x * v.x * m.x + v.y * v.y * m.y + v.z * v.z * m.z + v.w * v.w * m.w;
            }
        }
        store4(to + d, v, aligned, D - d);
        if (p.pieces == 1) continue;
        const float4 low = make_float4(low_of(v.x), low_of(v.y), low_of(v.z), low_of(v.w));
        store4(to + D + d, low, aligned, D - d);
        store4(to + 2 * D + d, v, aligned, D - d);
    }
    if (!kUnit) return;
    own = warp_sum(own);
    if (lane == 0 && p.own != nullptr) p.own[row] = own;
}

// Halves as they are, twice: 16 bytes per thread, or one number.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    repeat_kernel(const Unit* rows, int64_t count, int64_t width, Unit* out) {
    const int64_t at = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (at >= count * width) return;
    const Unit x = rows[at];
    Unit* const to = out + (at / width * 2) * width + at % width;
    to[0] = x;
    to[width] = x;
}

template <typename Unit>
void repeat(const SplitParams& p, void* stream) {
    const int64_t width = p.D * int64_t(sizeof(__half)) / int64_t(sizeof(Unit));
    launch("repeat_kernel", repeat_kernel<Unit>, ceil_div(p.B * p.N * width, kThreads), kThreads, 0,
           stream, static_cast<const Unit*>(p.rows), p.B * p.N, width, static_cast<Unit*>(p.out));
}

void repeat_halves(const SplitParams& p, void* stream) {
    require(p.dtype == DType::kFloat16, "rows in two pieces must be float16");
    const auto places = reinterpret_cast<uintptr_t>(p.rows) | reinterpret_cast<uintptr_t>(p.out);
    if (p.D % 8 == 0 && places % 16 == 0) return repeat<uint4>(p, stream);
    repeat<__half>(p, stream);
}

}  // namespace

void run_cuda(const SplitParams& p, int device, void* stream) {
    require(p.dtype != DType::kFloat64, "rows must be of half or single precision");
    const DeviceGuard guard(device);
    if (p.pieces == 2) return repeat_halves(p, stream);
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows, p.out}) &&
                         rows_aligned(DType::kFloat32, p.D, {p.scale, p.centre, p.metric});
    with_feature_type(p.dtype, [&](auto* feature) {
        using Feature = std::remove_pointer_t<decltype(feature)>;
        const auto kernel = p.unit ? split_kernel<Feature, true> : split_kernel<Feature, false>;
        launch("split_kernel", kernel, ceil_div(p.B * p.N, kWarps), kThreads, 0, stream, p,
               aligned);
    });
}

}  // namespace paddle_ext
