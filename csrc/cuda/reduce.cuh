// Reductions and loads within a warp. The order of every sum is fixed, so results are reproducible.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Real>
__device__ Real warp_sum(Real value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
}

__device__ inline int warp_sum(int value) { return __reduce_add_sync(kAllLanes, value); }

template <typename Real>
__device__ Real warp_max(Real value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        value = fmax(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    return value;
}

// Over `width` neighbouring lanes, a power of two.
__device__ inline float group_sum(float value, int width) {
    for (int step = width / 2; step > 0; step /= 2) {
        value += __shfl_xor_sync(kAllLanes, value, step);
    }
    return value;
}

__device__ inline float group_min(float value, int width) {
    for (int step = width / 2; step > 0; step /= 2) {
        value = fminf(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    return value;
}

// Over the block; every thread gets the result. `scratch` has one number per warp.
__device__ inline double block_sum(double value, double* scratch) {
    value = warp_sum(value);
    __syncthreads();  // the previous sums have been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (int warp = 0; warp < int(blockDim.x / 32); ++warp) sum += scratch[warp];
    return sum;
}

// Of two numbers at once.
__device__ inline double2 block_sum(double2 value, double2* scratch) {
    value.x = warp_sum(value.x), value.y = warp_sum(value.y);
    __syncthreads();  // the previous sums have been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    double2 sum = make_double2(0.0, 0.0);
    for (int warp = 0; warp < int(blockDim.x / 32); ++warp) {
        sum.x += scratch[warp].x, sum.y += scratch[warp].y;
    }
    return sum;
}

template <typename Real>
__device__ Real block_max(Real value, Real* scratch) {
    value = warp_max(value);
    __syncthreads();  // the previous results have been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < int(blockDim.x / 32); ++warp) value = fmax(value, scratch[warp]);
    return value;
}

// Over the four lanes of a quad.
__device__ inline float quad_sum(float value) {
    value += __shfl_xor_sync(kAllLanes, value, 1);
    return value + __shfl_xor_sync(kAllLanes, value, 2);
}

__device__ inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
    return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

// Over the lanes that have the same position in their quads.
__device__ inline float sum_over_quads(float value) {
    value += __shfl_xor_sync(kAllLanes, value, 4);
    value += __shfl_xor_sync(kAllLanes, value, 8);
    return value + __shfl_xor_sync(kAllLanes, value, 16);
}

// The label of the largest value of the warp, or of kLanes neighbours in it; of equal values, the
// smallest label.
template <int kLanes = 32>
__device__ inline int warp_argmax(float best, int label) {
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(kAllLanes, best, step);
        const int other_label = __shfl_xor_sync(kAllLanes, label, step);
        if (other > best || (other == best && other_label < label)) {
            best = other;
            label = other_label;
        }
    }
    return label;
}

// 2^x to about two units in the last place; results below the normal range are zero.
__device__ inline float exp2_approx(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// The root to about one unit in the last place.
__device__ inline float root_approx(float x) {
    float result;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// 1 / x to about one unit in the last place, for numbers that are neither tiny nor huge.
__device__ inline float reciprocal(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

// Four numbers at once.
__device__ inline float4 operator+(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ inline float4 operator-(float4 a, float4 b) {
    return make_float4(a.x - b.x, a.y - b.y, a.z - b.z, a.w - b.w);
}
__device__ inline float4 operator*(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ inline float4 operator*(float4 a, float b) { return a * make_float4(b, b, b, b); }
__device__ inline float4 roots_approx(float4 v) {
    return make_float4(root_approx(v.x), root_approx(v.y), root_approx(v.z), root_approx(v.w));
}
// Of magnitudes, and of squares.
__device__ inline float largest_of(float4 v) {
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}
__device__ inline float squared_norm(float4 v) {
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

// Four consecutive numbers; the address must be aligned to four of them.
__device__ inline float4 load4(const float* from) {
    return __ldg(reinterpret_cast<const float4*>(from));
}
__device__ inline float4 load4(const __half* from) {
    const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ inline float4 load4(const __nv_bfloat16* from) {
    const uint2 raw = __ldg(reinterpret_cast<const uint2*>(from));
    const float2 a = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.x));
    const float2 b = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&raw.y));
    return make_float4(a.x, a.y, b.x, b.y);
}

// Four numbers of a row of D from position d on, zero beyond its end. `aligned`: D and the base
// permit load4.
template <typename Feature>
__device__ inline float4 load_row4(const Feature* row, int64_t d, int64_t D, bool aligned) {
    if (aligned) return d < D ? load4(row + d) : make_float4(0, 0, 0, 0);
    float4 value;
    value.x = d < D ? to_float(row[d]) : 0.0f;
    value.y = d + 1 < D ? to_float(row[d + 1]) : 0.0f;
    value.z = d + 2 < D ? to_float(row[d + 2]) : 0.0f;
    value.w = d + 3 < D ? to_float(row[d + 3]) : 0.0f;
    return value;
}

// The number of rank `rank` in ascending order among `count` non-negative ones, found by one warp
// one bit at a time: the bits of non-negative floats sort like the floats.
template <int kHeld = 8>  // this many per lane are kept in registers
__device__ inline float warp_select_rank(const float* values, int64_t count, int64_t rank) {
    const int lane = threadIdx.x % 32;
    unsigned held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int64_t at = lane + 32 * i;
        held[i] = at < count ? __float_as_uint(values[at]) : 0xffffffffu;
    }
    unsigned prefix = 0;
    for (int bit = 30; bit >= 0; --bit) {
        const unsigned candidate = prefix | (1u << bit);
        int below = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) below += held[i] < candidate;
        for (int64_t i = lane + 32 * kHeld; i < count; i += 32) {
            below += __float_as_uint(values[i]) < candidate;
        }
        if (warp_sum(below) <= rank) prefix = candidate;
    }
    return __uint_as_float(prefix);
}

// --- feature rows of three types -----------------------------------------------------------------

// The operators do not inspect labels, which may be on a busy device. A value out of range must not
// become an address, so kernels load labels through this function.

// The class of a support row; -1, which matches no class, for a label outside [0, K).
__device__ inline int load_label(const int64_t* labels, int64_t row, int64_t K) {
    const int64_t label = labels[row];
    return label >= 0 && label < K ? int(label) : -1;
}

// The rows of a task grouped by class, in order, and where each class begins in `order`: a counting
// sort by one block. Every warp counts and places its own stretch. `tallies` has K for each warp.
__device__ inline void order_by_class(const int64_t* labels, int64_t S, int64_t K, int* tallies,
                                      int* order, int* start) {
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int* const own = tallies + warp * K;
    const int64_t stretch = (S + blockDim.x - 1) / blockDim.x * 32;
    const int64_t begin = warp * stretch, end = min(begin + stretch, S);
    for (int64_t k = lane; k < K; k += 32) own[k] = 0;
    __syncwarp();
    const auto each_row = [&](const auto& body) {
        for (int64_t s = begin; s < end; s += 32) {
            const int label = s + lane < end ? load_label(labels, s + lane, K) : -1;
            const bool valid = label >= 0;  // otherwise the row is in no group
            const unsigned peers = __match_any_sync(kAllLanes, label);
            if (valid) body(s + lane, label, __popc(peers & ((1u << lane) - 1)));
            __syncwarp();  // all have read the count
            if (valid && (peers >> lane) == 1u) own[label] += __popc(peers);
            __syncwarp();
        }
    };
    each_row([](int64_t, int, int) {});
    __syncthreads();

    // Where each warp's rows of each class begin.
    if (warp == 0) {
        int total = 0;
        for (int64_t base = 0; base < K; base += 32) {
            const int64_t k = base + lane;
            int mine = 0;
            for (int w = 0; k < K && w < warps; ++w) mine += tallies[w * K + k];
            int before = mine;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(kAllLanes, before, step);
                if (lane >= step) before += other;
            }
            int place = total + before - mine;
            if (k < K) start[k] = place;
            for (int w = 0; k < K && w < warps; ++w) {
                const int count = tallies[w * K + k];
                tallies[w * K + k] = place;
                place += count;
            }
            total += __shfl_sync(kAllLanes, before, 31);
        }
        if (lane == 0) start[K] = total;
    }
    __syncthreads();
    each_row([&](int64_t s, int label, int rank) { order[own[label] + rank] = int(s); });
}

// 1 / ||row|| by one warp; 0 for a zero row, which therefore stays zero.
template <typename Feature>
__device__ inline float inverse_norm(const Feature* row, int64_t D, bool aligned, float squared) {
    if (squared > float(Range<float>::kMinSquaredNorm) &&
        squared < float(Range<float>::kMaxSquaredNorm)) {
        return 1.0f / sqrtf(squared);
    }
    const int lane = threadIdx.x % 32;
    float largest = 0.0f;
    for (int64_t d = 4 * lane; d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        largest = fmaxf(largest, largest_of(x));
    }
    largest = warp_max(largest);
    if (largest == 0.0f) return 0.0f;
    int exponent;
    frexpf(largest, &exponent);
    float sum = 0.0f;
    for (int64_t d = 4 * lane; d < D; d += 128) {
        const float4 x = load_row4(row, d, D, aligned);
        const float a = ldexpf(x.x, -exponent), b = ldexpf(x.y, -exponent);
        const float c = ldexpf(x.z, -exponent), e = ldexpf(x.w, -exponent);
        sum += a * a + b * b + c * c + e * e;
    }
    return fminf(ldexpf(1.0f / sqrtf(warp_sum(sum)), -exponent), Range<float>::kInfinity);
}

template <typename Feature>
__device__ inline float warp_inverse_norm(const Feature* row, int64_t D, bool aligned) {
    float sum = 0.0f;
    for (int64_t d = 4 * (threadIdx.x % 32); d < D; d += 128) {
        sum += squared_norm(load_row4(row, d, D, aligned));
    }
    return inverse_norm(row, D, aligned, warp_sum(sum));
}

// Whether rows of D features at these addresses can be read four at a time.
inline bool rows_aligned(DType dtype, int64_t D, std::initializer_list<const void*> addresses) {
    const uintptr_t bytes = dtype == DType::kFloat32 ? 16 : 8;
    for (const void* at : addresses) {
        if (reinterpret_cast<uintptr_t>(at) % bytes != 0) return false;
    }
    return D % 4 == 0;
}

// Calls body with a null pointer of the feature type.
template <typename Body>
void with_feature_type(DType dtype, const Body& body) {
    switch (dtype) {
        case DType::kFloat16: return body(static_cast<__half*>(nullptr));
        case DType::kBFloat16: return body(static_cast<__nv_bfloat16*>(nullptr));
        default: return body(static_cast<float*>(nullptr));
    }
}

}  // namespace paddle_ext
