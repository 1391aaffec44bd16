// One task of Sinkhorn's iteration, shared by its kernels; the algebra is in common/sinkhorn.h,
// with the same names. Logarithms are base 2 here.
#pragma once

#include "common/sinkhorn.h"
#include "cuda/reduce.cuh"
#include "cuda/team.cuh"

namespace paddle_ext::sinkhorn {

// Every warp computes the same.
__device__ inline float warp_total(const float* mass, int count) {
    double total = 0;
    for (int i = threadIdx.x % 32; i < count; i += 32) total += double(mass[i]);
    return float(warp_sum(total));
}

struct Task {
    const float *cost, *row_mass, *col_mass;  // [Q, K], [Q], [K]
    float* plan;                              // [Q, K]
    int Q, K;
    double sharpness;  // in base 2
    float row_total, col_total, tol;

    __device__ Task(const SinkhornParams& p, int64_t task)
        : cost(floats(p.cost, task * p.Q * p.K)),
          row_mass(floats(p.row_mass, p.row_mass_shared ? 0 : task * p.Q)),
          col_mass(floats(p.col_mass, p.col_mass_shared ? 0 : task * p.K)),
          plan(floats(p.plan, task * p.Q * p.K)), Q(int(p.Q)), K(int(p.K)),
          sharpness(fmin(p.sharpness * kLog2e<double>, SinkhornBounds<double>::kFinite)),
          row_total(warp_total(row_mass, Q)), col_total(warp_total(col_mass, K)),
          tol(float(fmin(p.tol, double(SinkhornBounds<float>::kFinite)))) {}

    __device__ float row_share(int q) const { return row_total > 0 ? row_mass[q] / row_total : 0; }
    __device__ float col_share(int k) const { return col_total > 0 ? col_mass[k] / col_total : 0; }

    __device__ bool stops(const SinkhornParams& p, int iterations, float residual) const {
        return iterations >= p.max_iter || (tol > 0 && !(residual > tol));
    }
};

// Potentials of a task, in shared memory or in the workspace.
struct Potentials {
    SharedArena arena;
    int64_t rows, columns;
    // [K] minimum, over the rows with mass, of the cost minus row_low; or 0
    double* col_low = arena.take<double>(columns);
    double* row_log = arena.take<double>(rows);     // [Q]  f
    double* col_log = arena.take<double>(columns);  // [K]  g
    float* row_low = arena.take<float>(rows);       // [Q]  minimum of the cost
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

// --- large tasks ---------------------------------------------------------------------------------
//
// All iterations of a large task: in one block, with M in shared memory, or, if it does not fit, in
// several, with M in the plan itself, which is global memory and in practice cache. Every sum is
// taken in a fixed order.

constexpr int kLargeThreads = 512;
constexpr int64_t kTerms = 128;  // long sums are split into sums of this many: rounding accumulates

// The vectors of a task, in shared memory alongside M or in the workspace.
struct LargeTask : Potentials {
    int64_t threads;  // of a team
    bool with_m;
    float* row_mass = arena.take<float>(rows);  // [Q]  of a total of 1
    float* col_mass = arena.take<float>(columns);
    float* a = arena.take<float>(rows);
    float* b = arena.take<float>(columns);
    float* row_sum = arena.take<float>(rows);
    // Sums of a column over some rows.
    float* part = arena.take<float>(columns > threads ? columns : threads);
    float* m = arena.take<float>(with_m ? rows * columns : 0);  // [Q, K] or none

    int64_t bytes() const { return round_up(arena.used(), int64_t(256)); }
};

// row_sum = M b
__device__ inline void sum_rows(Team& team, const Task& t, const LargeTask& s) {
    const int width = lanes_per_row(t.K);
    for_rows(team, t.Q, width, [&](int q, int lane) {
        float sum = 0.0f;
        if (q >= 0) {
            const float* const row = s.m + int64_t(q) * t.K;
            for (int64_t start = lane; start < t.K; start += kTerms * width) {
                const int64_t end = min(start + kTerms * width, int64_t(t.K));
                float some = 0.0f;
#pragma unroll 8
                for (int64_t k = start; k < end; k += width) some = fmaf(row[k], s.b[k], some);
                sum += some;
            }
        }
        sum = group_sum(sum, width);
        if (q >= 0 && lane == 0) s.row_sum[q] = sum;
    });
    team.sync();
}

// The residual of the current factors, from row_sum.
__device__ inline float row_residual(Team& team, const Task& t, const LargeTask& s) {
    float worst = 0.0f;
    for (int q = team.thread; q < t.Q; q += team.threads) {
        worst = fmaxf(worst, fabsf(s.a[q] * s.row_sum[q] - s.row_mass[q]));
    }
    return t.row_total * __uint_as_float(team.most(__float_as_uint(worst)));
}

// a from row_sum; returns whether one of this thread's has drifted.
__device__ inline bool row_step(Team& team, const Task& t, const LargeTask& s) {
    bool far = false;
    for (int q = team.thread; q < t.Q; q += team.threads) {
        far |= drifted(s.row_sum[q], s.row_mass[q]);
        s.a[q] = new_factor(s.row_sum[q], s.row_mass[q]);
    }
    team.sync();
    return far;
}

// b from M^T a; reports whether one of this thread's has drifted or is lost. With few columns
// several threads share one, each with every parts-th row.
__device__ inline void column_factors(Team& team, const Task& t, const LargeTask& s, bool& far,
                                      bool& lost) {
    const int parts = max(1, team.threads / t.K), step = parts > 1 ? parts * t.K : team.threads;
    for (int i = team.thread; i < parts * t.K; i += step) {
        const int k = i % t.K;
        float sum = 0.0f;
        for (int64_t start = i / t.K; start < t.Q; start += kTerms * parts) {
            const int64_t end = min(start + kTerms * parts, int64_t(t.Q));
            float some = 0.0f;
#pragma unroll 8
            for (int64_t q = start; q < end; q += parts)
                some = fmaf(s.m[q * t.K + k], s.a[q], some);
            sum += some;
        }
        s.part[i] = sum;
    }
    team.sync();
    const int width = parts > 1 ? 32 : 1;
    for_rows(team, t.K, width, [&](int k, int lane) {
        double all = 0;  // of many parts
        for (int i = lane; k >= 0 && i < parts; i += width) all += double(s.part[i * t.K + k]);
        if (width > 1) all = warp_sum(all);
        if (k < 0 || lane != 0) return;
        const float sum = float(all);
        far |= drifted(sum, s.col_mass[k]);
        lost |= is_lost(sum, s.col_mass[k]);
        s.b[k] = new_factor(sum, s.col_mass[k]);
    });
}

// M from the potentials.
__device__ inline void fill(Team& team, const Task& t, const LargeTask& s) {
    team.sync();  // the potentials are in place
    for (int q = team.thread / 32; q < t.Q; q += team.threads / 32) {
        for (int k = team.thread % 32; k < t.K; k += 32) {
            const int64_t at = int64_t(q) * t.K + k;
            s.m[at] = element(t, s, q, k, t.cost[at]);
        }
    }
    team.sync();
}

// The same, with the factors where they start.
__device__ inline void refill(Team& team, const Task& t, const LargeTask& s) {
    for (int q = team.thread; q < t.Q; q += team.threads) s.a[q] = sqrtf(s.row_mass[q]);
    for (int k = team.thread; k < t.K; k += team.threads) s.b[k] = sqrtf(s.col_mass[k]);
    fill(team, t, s);
}

// The factors of one side, into its potentials.
__device__ inline void absorb(Team& team, int count, double* log, const float* factor,
                              const float* mass) {
    for (int i = team.thread; i < count; i += team.threads) log[i] += absorbed(factor[i], mass[i]);
}

// The functions for what is rare are not inlined, so that they cost the iteration no registers.

// The row sums again, if a row is lost.
__device__ __noinline__ void recover_rows(Team& team, const Task& t, const LargeTask& s) {
    absorb(team, t.K, s.col_log, s.b, s.col_mass);
    team.sync();  // the potentials of the columns are in place
    centre<true>(team, t, s);
    refill(team, t, s);
    sum_rows(team, t, s);
}

__device__ inline void find_rows(Team& team, const Task& t, const LargeTask& s) {
    bool lost = false;
    for (int q = team.thread; q < t.Q; q += team.threads) {
        lost |= is_lost(s.row_sum[q], s.row_mass[q]);
    }
    if (team.any(lost)) recover_rows(team, t, s);
}

__device__ __noinline__ bool recover_columns(Team& team, const Task& t, const LargeTask& s) {
    absorb(team, t.Q, s.row_log, s.a, s.row_mass);
    team.sync();  // the potentials of the rows are in place
    centre<false>(team, t, s);
    refill(team, t, s);
    bool far = false, lost = false;
    column_factors(team, t, s, far, lost);
    return team.any(far);
}

// b from M^T a; returns whether a factor of the block has drifted, `far` covering this thread's
// rows. The step is repeated if a column is lost, except the first step, which is handled
// separately.
__device__ inline bool column_step(Team& team, const Task& t, const LargeTask& s, bool far,
                                   bool first = false) {
    bool lost = false;
    column_factors(team, t, s, far, lost);
    if (!team.any(far)) return false;
    return first || !team.any(lost) || recover_columns(team, t, s);
}

__device__ __noinline__ void absorb(Team& team, const Task& t, const LargeTask& s) {
    absorb(team, t.Q, s.row_log, s.a, s.row_mass);
    absorb(team, t.K, s.col_log, s.b, s.col_mass);
    refill(team, t, s);
}

__device__ __noinline__ void first_iteration(Team& team, const Task& t, const LargeTask& s) {
    start_potentials(team, t, s);
    for (int q = team.thread; q < t.Q; q += team.threads) s.row_mass[q] = t.row_share(q);
    for (int k = team.thread; k < t.K; k += team.threads) {
        s.col_mass[k] = t.col_share(k);
        s.b[k] = 1.0f;
    }
    fill(team, t, s);
    sum_rows(team, t, s);
    if (!column_step(team, t, s, row_step(team, t, s), true)) return;
    absorb(team, t.Q, s.row_log, s.a, s.row_mass);
    reduce_columns(team, t, s);
    refill(team, t, s);
    if (column_step(team, t, s, false)) absorb(team, t, s);
}

// Solves one task.
__device__ inline void solve(const SinkhornParams& p, Team& team, int64_t task, const Task& t,
                             const LargeTask& s) {
    first_iteration(team, t, s);
    int done = 1;
    float residual;
    for (;; ++done) {
        sum_rows(team, t, s);
        residual = row_residual(team, t, s);
        if (t.stops(p, done, residual)) break;
        find_rows(team, t, s);
        if (column_step(team, t, s, row_step(team, t, s))) absorb(team, t, s);
    }
    for (int q = team.thread / 32; q < t.Q; q += team.threads / 32) {
        for (int k = team.thread % 32; k < t.K; k += 32) {
            const int64_t at = int64_t(q) * t.K + k;
            t.plan[at] = planned(s.a[q], s.m[at], s.b[k], t.row_total);
        }
    }
    if (team.thread == 0) {
        p.iterations[task] = done;
        floats(p.residual)[task] = residual;
    }
    team.sync();  // the memory is free for the next task
}

// One block per task.
__global__ void __launch_bounds__(kLargeThreads) sinkhorn_shared_kernel(const SinkhornParams p) {
    extern __shared__ double memory[];
    Team team;
    const LargeTask s{{SharedArena(memory), p.Q, p.K}, kLargeThreads, true};
    solve(p, team, blockIdx.x, Task(p, blockIdx.x), s);
}

// How tasks that do not fit in shared memory are divided among blocks.
struct TeamPlan {
    int blocks;          // per team, by the shape of a task only
    int teams;           // at the same time
    int64_t task_bytes;  // of a team's LargeTask
    int64_t bytes;       // of the workspace: the memory of all teams, then their tasks

    __host__ __device__ TeamMemory* team(void* workspace, int64_t number) const {
        return static_cast<TeamMemory*>(workspace) + number;
    }

    __host__ __device__ int64_t team_bytes() const {
        return round_up(teams * int64_t(sizeof(TeamMemory)), int64_t(256));
    }

    __host__ __device__ void* task(void* workspace, int64_t number) const {
        return static_cast<char*>(workspace) + team_bytes() + number * task_bytes;
    }
};

// A team per task, until none is left.
__global__ void __launch_bounds__(kLargeThreads, 2)
    sinkhorn_teams_kernel(const SinkhornParams p, const TeamPlan plan) {
    const int number = blockIdx.x / plan.blocks;
    Team team(plan.team(p.workspace, number), blockIdx.x % plan.blocks, plan.blocks);
    for (int64_t task = number; task < p.B; task += plan.teams) {
        const Task t(p, task);
        LargeTask s{{SharedArena(plan.task(p.workspace, number)), p.Q, p.K}, team.threads, false};
        s.m = t.plan;
        solve(p, team, task, t, s);
    }
}

}  // namespace paddle_ext::sinkhorn
