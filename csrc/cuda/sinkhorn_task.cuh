// One task of Sinkhorn's iteration, shared by its kernels; the algebra is in common/sinkhorn.h,
// with the same names. Logarithms are base 2 here.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/device.cuh"
#include "common/params.h"
#include "common/reduce.cuh"
#include "common/sinkhorn.h"
#include "cuda/team.cuh"
#include "cuda/watch.cuh"

namespace paddle_ext::sinkhorn {

struct Task {
    const float* cost;  // [Q, K]
    const float* row_mass;
    const float* col_mass;
    float* plan;  // [Q, K]
    int Q, K;
    double sharpness;  // in base 2
    float row_total, col_total;
    float tol;

    __device__ float row_share(int q) const { return row_total > 0 ? row_mass[q] / row_total : 0; }
    __device__ float col_share(int k) const { return col_total > 0 ? col_mass[k] / col_total : 0; }
};

// Every warp computes the same.
__device__ inline float warp_total(const float* mass, int count) {
    double total = 0;
    for (int i = threadIdx.x % 32; i < count; i += 32) total += double(mass[i]);
    return float(warp_sum(total));
}

__device__ inline Task make_task(const SinkhornParams& p, int64_t task) {
    Task t;
    t.Q = int(p.Q);
    t.K = int(p.K);
    t.cost = static_cast<const float*>(p.cost) + task * p.Q * p.K;
    t.plan = static_cast<float*>(p.plan) + task * p.Q * p.K;
    t.row_mass = static_cast<const float*>(p.row_mass) + (p.row_mass_shared ? 0 : task * p.Q);
    t.col_mass = static_cast<const float*>(p.col_mass) + (p.col_mass_shared ? 0 : task * p.K);
    t.sharpness = fmin(p.sharpness * kLog2e<double>, SinkhornBounds<double>::kFinite);
    t.row_total = warp_total(t.row_mass, t.Q);
    t.col_total = warp_total(t.col_mass, t.K);
    t.tol = float(fmin(p.tol, double(SinkhornBounds<float>::kFinite)));
    return t;
}

// Potentials of a task, in shared memory or in the workspace.
struct Potentials {
    double* col_low;  // [K]  minimum, over the rows with mass, of the cost minus row_low; or 0
    double* row_log;  // [Q]  f
    double* col_log;  // [K]  g
    float* row_low;   // [Q]  minimum of the cost

    __host__ __device__ void take(SharedArena& arena, int64_t Q, int64_t K) {
        col_low = arena.take<double>(K);
        row_log = arena.take<double>(Q);
        col_log = arena.take<double>(K);
        row_low = arena.take<float>(Q);
    }
};

// Lanes per row: few for short rows, so that a warp handles several.
__device__ inline int lanes_per_row(int K) {
    return K > 64 ? 32 : K > 32 ? 16 : K > 16 ? 8 : K > 8 ? 4 : 1;
}

// Calls body(row, lane within the row's group) for all rows, equally often in all lanes of a warp,
// so that body may call group_sum and group_min; with -1 beyond the last row.
template <typename Body>
__device__ inline void for_rows(const Team& team, int Q, int width, const Body& body) {
    const int at_once = team.threads / width, group = team.thread / width;
    for (int64_t first = 0; first < Q; first += at_once) {
        const int64_t q = first + group;
        body(q < Q ? int(q) : -1, team.thread % width);
    }
}

// The minima of the rows, and potentials of zero.
__device__ inline void start_potentials(const Team& team, const Task& t, const Potentials& s) {
    const int width = lanes_per_row(t.K);
    for_rows(team, t.Q, width, [&](int q, int lane) {
        float low = SinkhornBounds<float>::kFinite;
        if (q >= 0) {
            const float* const row = t.cost + int64_t(q) * t.K;
            for (int k = lane; k < t.K; k += width) low = fminf(low, row[k]);
        }
        low = group_min(low, width);
        if (q >= 0 && lane == 0) s.row_low[q] = low;
    });
    for (int q = team.thread; q < t.Q; q += team.threads) {
        s.row_log[q] = t.row_mass[q] > 0 ? 0.0 : kSinkhornGone;
    }
    // A column without mass still counts in the first row step.
    for (int k = team.thread; k < t.K; k += team.threads) s.col_log[k] = s.col_low[k] = 0.0;
}

// The minima of the columns, over the rows with mass; columns without mass are dropped.
__device__ inline void reduce_columns(const Team& team, const Task& t, const Potentials& s) {
    for (int k = team.thread; k < t.K; k += team.threads) {
        double low = SinkhornBounds<double>::kFinite;
        for (int q = 0; q < t.Q; ++q) {
            const double above = double(t.cost[int64_t(q) * t.K + k]) - double(s.row_low[q]);
            if (t.row_mass[q] > 0) low = fmin(low, above);
        }
        s.col_low[k] = low;
        s.col_log[k] = t.col_mass[k] > 0 ? 0.0 : kSinkhornGone;
    }
}

__device__ inline double log_element(const Task& t, const Potentials& s, int q, int k, float cost) {
    const double above = double(cost) - double(s.row_low[q]);
    return s.row_log[q] + s.col_log[k] - t.sharpness * (above - s.col_low[k]);
}

// An element of M from the potentials.
__device__ inline float element(const Task& t, const Potentials& s, int q, int k, float cost) {
    constexpr double kHighest = SinkhornBounds<float>::kHighest * kLog2e<double>;
    constexpr double kLowest = -200.0;  // two to this is zero in float
    return exp2f(float(fmax(fmin(log_element(t, s, q, k, cost), kHighest), kLowest)));
}

// Potentials of the rows (or the columns) that make the largest element of each 1; those of the
// other side are given.
template <bool kRows>
__device__ inline void centre(const Team& team, const Task& t, const Potentials& s) {
    const int count = kRows ? t.Q : t.K, others = kRows ? t.K : t.Q;
    for (int i = team.thread; i < count; i += team.threads) {
        if (!((kRows ? t.row_mass : t.col_mass)[i] > 0)) continue;
        double most = kSinkhornGone;
        for (int j = 0; j < others; ++j) {
            const int q = kRows ? i : j, k = kRows ? j : i;
            most = fmax(most, log_element(t, s, q, k, t.cost[int64_t(q) * t.K + k]));
        }
        (kRows ? s.row_log : s.col_log)[i] -= most;
    }
}

// Whether the factor mass / sum is too far from the root of the mass.
__device__ inline bool drifted(float sum, float mass) {
    constexpr float kFar = float(kSinkhornFar);
    const float square = sum * sum;
    return square > mass * kFar || square * kFar < mass;
}

// Whether M has no elements to compute the factor from.
__device__ inline bool is_lost(float sum, float mass) {
    return sum < SinkhornBounds<float>::kLeast && mass > 0.0f;
}

// mass / sum, without the slow path of a division.
__device__ inline float new_factor(float sum, float mass) {
    sum = fminf(fmaxf(sum, SinkhornBounds<float>::kLeast), SinkhornBounds<float>::kMost);
    const float inverse = reciprocal(sum);
    const float quotient = mass * inverse;
    return fmaf(fmaf(-sum, quotient, mass), inverse, quotient);
}

// Added to a potential when its factor is reset.
__device__ inline double absorbed(float factor, float mass) {
    return mass > 0 && factor > 0 ? double(log2f(factor) - 0.5f * log2f(mass)) : 0.0;
}

__device__ inline float planned(float a, float m, float b, float total) {
    return total * (fminf(a * m, SinkhornBounds<float>::kFinite) * b);
}

__device__ inline bool stops(const SinkhornParams& p, const Task& t, int iterations,
                             float residual) {
    return iterations >= p.max_iter || (t.tol > 0 && !(residual > t.tol));
}

}  // namespace paddle_ext::sinkhorn
