// How a task of the block solver begins and ends: choosing the next task, loading it into shared
// memory, its scale, its results, the launch.
#pragma once

#include <algorithm>

#include "cuda/paddle_classes.cuh"
#include "cuda/watch.cuh"

namespace paddle_ext {

// How a task ended.
struct Outcome {
    int iterations;
    float criterion;
};

// The next task of the chunk, from a common counter: a task that ends early costs nothing. None if
// the call is cancelled.
__device__ inline int64_t next_task(const Chunk& c, const Shared& s) {
    if (threadIdx.x == 0) {
        const bool stop = c.stop != nullptr && *c.stop != 0;
        s.state[kTask] = stop ? INT32_MAX : atomicAdd(c.next_task, 1);
        s.state[kWake] = 0;
    }
    __syncthreads();
    return s.state[kTask];
}

// Squared factor of scaling="auto"; u serves as scratch for the distances.
__device__ inline double auto_factor(const Block& b) {
    float2* const leads =
        reinterpret_cast<float2*>(b.s.delta);  // distances of the nearest class, and medians
    for (int q = b.warp; q < b.Q; q += b.warps) {
        float* const distance = b.u + int64_t(q) * b.K;
        const float own = b.gram[int64_t(q) * b.Qp + q];
        float nearest = Range<float>::kInfinity;
        for (int k = b.lane; k < b.K; k += 32) {
            const float at = 1.0f / b.s.mass[k];
            const float inner = b.m[int64_t(k) * b.Qp + q];
            distance[k] = fmaxf(own + at * (at * float(b.s.norm[k]) - 2.0f * inner), 0.0f);
            nearest = fminf(nearest, distance[k]);
        }
        __syncwarp();
        const float median = warp_select_rank(distance, b.K, b.K / 2);
        nearest = -warp_max(-nearest);
        if (b.lane == 0) leads[q] = make_float2(median - nearest, median);
    }
    __syncthreads();
    double gap = 0.0, median = 0.0;
    for (int q = 0; q < b.Q; ++q) {
        gap += double(leads[q].x);
        median += double(leads[q].y);
    }
    return auto_factor_squared(gap / double(b.Q), median / double(b.Q));
}

// Loads the task into shared memory and folds its scale into the temperature. Returns one of its
// units in the units of the criterion.
__device__ inline double load_task(Block& b, int64_t at) {
    const PaddleParams& p = b.c.call;
    b.unscale =
        split_gram(b.gram + int64_t(b.row) * b.Qp, b.Q - b.row, b.Qp, b.quarter, b.lane, b.halves);
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        b.s.mass[k] = safe_mass(b.count[k]);
        b.s.norm[k] = b.c.norm[at * b.K + k];
        b.s.held[k] = 0.0f;
    }
    wake_all(b);
    clear_bits(b.s.loud, b.s.full, 2 * ceil_div(b.K, kTile));
    __syncthreads();  // mass and norm of all classes are in place
    double squared = ldexp(1.0, 2 * b.c.exponent[at]);
    if (p.scaling == Scaling::kAuto) {
        squared = auto_factor(b);
        __syncthreads();  // u and du are no longer scratch
    }
    b.temperature = float(folded_temperature<float>(p.temperature, squared));
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) set_logit(b, k, 0.0f);
    return sqrt(squared);
}

__device__ inline float scaled_tolerance(double tol, double unit) {
    return float(fmin(tol / unit, double(Range<float>::kInfinity)));
}

__device__ inline void write_outcome(const PaddleParams& p, int64_t task, const Outcome& outcome,
                                     double unit) {
    if (threadIdx.x != 0) return;
    p.iterations[task] = outcome.iterations;
    static_cast<float*>(p.criterion)[task] =
        float(fmin(outcome.criterion * unit, double(Range<float>::kInfinity)));
}

// Proportions and dual of a task.
__device__ inline void write_classes(const Block& b, int64_t task) {
    const PaddleParams& p = b.c.call;
    for (int k = threadIdx.x; k < b.K; k += blockDim.x) {
        const float proportion = b.s.held[k] / float(b.Q);
        static_cast<float*>(p.proportions)[task * b.K + k] = proportion;
        static_cast<float*>(p.dual)[task * b.K + k] = 1.0f + logf(proportion + b.limit.epsilon);
    }
}

// A block solves one task after the other by solve(block, task, tolerance).
template <bool SharedGram, typename Solve>
__device__ __forceinline__ void solve_tasks(const Chunk& c, const Solve& solve) {
    extern __shared__ __align__(16) char memory[];
    const Shared s(memory, c.plan.Qp, c.call.size.K, SharedGram, nullptr);
    const Limits limits(c.call);
    while (true) {
        const int64_t at = next_task(c, s);
        if (at >= c.tasks) return;
        Block b(c, s, at, limits, SharedGram);
        const double unit = load_task(b, at);
        __syncthreads();  // the task is in shared memory
        const Outcome outcome = solve(b, c.first + at, scaled_tolerance(c.call.tol, unit));
        write_outcome(c.call, c.first + at, outcome, unit);
        __syncthreads();  // shared memory is free for the next task
    }
}

// As many blocks as the device can run at once.
template <typename Kernel>
void launch_resident(Kernel* kernel, const Chunk& c) {
    const int threads = int(c.plan.Qp / kRowsPerWarp * 32), bytes = c.plan.shared_bytes;
    allow_all_shared(kernel);
    const int64_t resident = resident_blocks(kernel, threads, bytes) * c.multiprocessors;
    fill_bytes(c.next_task, 0, sizeof(int), c.stream);
    launch("the block solver", kernel, std::min(c.tasks, resident), threads, bytes, c.stream, c);
}

}  // namespace paddle_ext
