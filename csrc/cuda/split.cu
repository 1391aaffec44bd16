// Rows of large tasks as halves, for products on tensor cores. One warp per row.

#include "cuda/split.h"

#include "common/check.h"
#include "common/device.cuh"
#include "common/reduce.cuh"

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

template <typename Feature>
__global__ void __launch_bounds__(kThreads) split_kernel(SplitParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, D = p.D;
    if (row >= p.B * p.N) return;
    const int64_t task = row / p.N;
    const bool aligned = D % 4 == 0;
    const Feature* const from = static_cast<const Feature*>(p.rows) + row * D;
    __half* const to = static_cast<__half*>(p.out) + row * p.pieces * D;
    const float length = p.length == nullptr ? 1.0f : p.length[row];
    for (int64_t d = threadIdx.x % 32 * 4; d < D; d += 128) {
        float4 x = load_row4(from, d, D, aligned);
        const float4 scale = load_row4(p.scale + task * D, d, D, aligned);
        const float4 centre = load_row4(p.centre + task * D, d, D, aligned);
        x = make_float4(
            fmaf(x.x * length, scale.x, -centre.x), fmaf(x.y * length, scale.y, -centre.y),
            fmaf(x.z * length, scale.z, -centre.z), fmaf(x.w * length, scale.w, -centre.w));
        store4(to + d, x, aligned, D - d);
        if (p.pieces == 1) continue;
        const float4 low = make_float4(low_of(x.x), low_of(x.y), low_of(x.z), low_of(x.w));
        store4(to + D + d, low, aligned, D - d);
        store4(to + 2 * D + d, x, aligned, D - d);
    }
}

template <typename Feature>
void launch(const SplitParams& p, cudaStream_t stream) {
    const unsigned blocks = grid_size(ceil_div(p.B * p.N, int64_t(kWarps)));
    split_kernel<Feature><<<blocks, kThreads, 0, stream>>>(p);
    check_launch("split_kernel");
}

}  // namespace

int64_t split_cuda_workspace(const SplitParams&, int) { return 0; }

void split_cuda(const SplitParams& p, int device, void* on) {
    require(p.dtype != DType::kFloat64, "rows must be of half or single precision");
    const DeviceGuard guard(device);
    const auto stream = static_cast<cudaStream_t>(on);
    if (p.dtype == DType::kFloat16) return launch<__half>(p, stream);
    if (p.dtype == DType::kBFloat16) return launch<__nv_bfloat16>(p, stream);
    launch<float>(p, stream);
}

}  // namespace paddle_ext
