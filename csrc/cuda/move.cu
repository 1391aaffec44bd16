// Prototypes of large tasks on CUDA: one block per class.

#include "common/check.h"
#include "common/device.cuh"
#include "common/large.h"
#include "common/math.h"
#include "common/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

// Class number `at` of all tasks.
struct MovedClass {
    const MoveParams& p;
    int64_t at, task;
    float shots, mass;

    __device__ MovedClass(const MoveParams& params, int64_t number)
        : p(params), at(number), task(number / params.K), shots(0), mass(1) {
        if (p.sums == nullptr) return;
        shots = float(p.shots[at]);
        mass = float(safe_mass(p.shots[at] + p.held[at]));
    }

    // Feature d of the sum of the rows, in the coordinates.
    __device__ float sum(int64_t d) const {
        const float* const sums = static_cast<const float*>(p.sums);
        const float* const rest = static_cast<const float*>(p.rest);
        float found = 0;
        for (int64_t part = 0; part < p.parts; ++part) {
            const int64_t line = (task * p.parts + part) * p.K + at % p.K;
            found += sums[line * p.width + d];
            if (p.width > p.D) found += sums[line * p.width + p.D + d];
            if (rest != nullptr) found += rest[line * p.D + d];
        }
        if (p.scale == nullptr) return found;
        const float scale = static_cast<const float*>(p.scale)[task * p.D + d];
        const float centre = static_cast<const float*>(p.centre)[task * p.D + d];
        return found * scale - float(p.held[at]) * centre;
    }

    __device__ float moved(int64_t d) const {
        return (static_cast<const float*>(p.start)[at * p.D + d] * shots + sum(d)) / mass;
    }

    // Feature d as a factor of products.
    __device__ void write(int64_t d, float w) const {
        __half* const to = static_cast<__half*>(p.operand) + at * p.pieces * p.D + d;
        if (p.factor != nullptr) w *= static_cast<const float*>(p.factor)[task * p.D + d];
        const __half high = __float2half_rn(w);
        to[0] = high;
        if (p.pieces == 1) return;
        if (p.pieces == 3) to[p.D] = high;
        to[(p.pieces - 1) * p.D] = __float2half_rn(w - __half2float(high));
    }
};

__global__ void __launch_bounds__(kThreads) move_kernel(MoveParams p) {
    __shared__ double scratch[kWarps];
    const MovedClass own(p, blockIdx.x);
    const bool moves = p.sums != nullptr && p.running[own.task] != 0;
    float* const prototype = static_cast<float*>(p.prototypes) + own.at * p.D;
    float* const before = static_cast<float*>(p.before) + own.at * p.D;
    const float* const centre = static_cast<const float*>(p.centre);
    double squared = 0, half_square = 0;
    for (int64_t d = threadIdx.x; d < p.D; d += kThreads) {
        float w = prototype[d];
        if (moves) {
            const float to = own.moved(d);
            const double away = double(to - w);
            squared += away * away;
            before[d] = w;
            prototype[d] = w = to;
        }
        half_square += double(w) * double(w) / 2;
        // Rows as they are have products with w that are larger by this.
        if (centre != nullptr) half_square += double(w) * double(centre[own.task * p.D + d]);
        if (p.pieces > 0) own.write(d, w);
    }
    squared = block_sum(squared, scratch);
    half_square = block_sum(half_square, scratch);
    if (threadIdx.x != 0) return;
    if (moves) p.away[own.at] = sqrt(squared);
    p.base[own.at] = -p.slope[own.task] * half_square;
}

}  // namespace

void run_cuda(const MoveParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "prototypes on CUDA must be float32");
    const DeviceGuard guard(device);
    launch("move_kernel", move_kernel, p.B * p.K, kThreads, 0, stream, p);
}

}  // namespace paddle_ext
