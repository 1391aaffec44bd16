// All iterations of a large task: in one block, with M in shared memory, or, if it does not fit, in
// several, with M in the plan itself, which is global memory and in practice cache. Every sum is
// taken in a fixed order.
#pragma once

#include "cuda/sinkhorn_task.cuh"

namespace paddle_ext::sinkhorn {

constexpr int kLargeThreads = 512;
constexpr int64_t kTerms = 128;  // long sums are split into sums of this many: rounding accumulates

// The vectors of a task, in shared memory alongside M or in the workspace.
struct LargeTask {
    Potentials potentials;
    float* row_mass;  // [Q]  of a total of 1
    float* col_mass;  // [K]
    float* a;         // [Q]
    float* b;         // [K]
    float* row_sum;   // [Q]
    float* part;      // [max(threads, K)]  sums of a column over some rows
    float* m;         // [Q, K] or none

    // For a team of this many threads.
    __host__ __device__ LargeTask(void* base, int64_t Q, int64_t K, int64_t threads, bool with_m,
                                  int64_t* bytes) {
        SharedArena arena(base);
        potentials.take(arena, Q, K);
        row_mass = arena.take<float>(Q);
        col_mass = arena.take<float>(K);
        a = arena.take<float>(Q);
        b = arena.take<float>(K);
        row_sum = arena.take<float>(Q);
        part = arena.take<float>(K > threads ? K : threads);
        m = arena.take<float>(with_m ? Q * K : 0);
        if (bytes != nullptr) *bytes = round_up(arena.used(), int64_t(256));
    }
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
            s.m[at] = element(t, s.potentials, q, k, t.cost[at]);
        }
    }
    team.sync();
}

__device__ inline void go_home(Team& team, const Task& t, const LargeTask& s) {
    for (int q = team.thread; q < t.Q; q += team.threads) s.a[q] = sqrtf(s.row_mass[q]);
    for (int k = team.thread; k < t.K; k += team.threads) s.b[k] = sqrtf(s.col_mass[k]);
}

// The factors of one side, into its potentials.
__device__ inline void absorb(Team& team, int count, double* log, const float* factor,
                              const float* mass) {
    for (int i = team.thread; i < count; i += team.threads) log[i] += absorbed(factor[i], mass[i]);
}

// The functions for what is rare are not inlined, so that they cost the iteration no registers.

// The row sums again, if a row is lost.
__device__ __noinline__ void recover_rows(Team& team, const Task& t, const LargeTask& s) {
    absorb(team, t.K, s.potentials.col_log, s.b, s.col_mass);
    team.sync();  // the potentials of the columns are in place
    centre<true>(team, t, s.potentials);
    go_home(team, t, s);
    fill(team, t, s);
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
    absorb(team, t.Q, s.potentials.row_log, s.a, s.row_mass);
    team.sync();  // the potentials of the rows are in place
    centre<false>(team, t, s.potentials);
    go_home(team, t, s);
    fill(team, t, s);
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
    absorb(team, t.Q, s.potentials.row_log, s.a, s.row_mass);
    absorb(team, t.K, s.potentials.col_log, s.b, s.col_mass);
    go_home(team, t, s);
    fill(team, t, s);
}

__device__ __noinline__ void first_iteration(Team& team, const Task& t, const LargeTask& s) {
    start_potentials(team, t, s.potentials);
    for (int q = team.thread; q < t.Q; q += team.threads) s.row_mass[q] = t.row_share(q);
    for (int k = team.thread; k < t.K; k += team.threads) {
        s.col_mass[k] = t.col_share(k);
        s.b[k] = 1.0f;
    }
    fill(team, t, s);
    sum_rows(team, t, s);
    if (!column_step(team, t, s, row_step(team, t, s), true)) return;
    absorb(team, t.Q, s.potentials.row_log, s.a, s.row_mass);
    reduce_columns(team, t, s.potentials);
    go_home(team, t, s);
    fill(team, t, s);
    if (column_step(team, t, s, false)) absorb(team, t, s);
}

// Solves one task.
__device__ inline void solve(const SinkhornParams& p, Team& team, int64_t task, const Task& t,
                             const LargeTask& s, const volatile int* stop) {
    first_iteration(team, t, s);
    int done = 1;
    float residual;
    for (;; ++done) {
        sum_rows(team, t, s);
        residual = row_residual(team, t, s);
        if (stops(p, t, done, residual)) break;
        // All blocks of a team must agree whether the call is cancelled.
        const bool asks = stop != nullptr && done % 64 == 0;
        if (asks && team.any(threadIdx.x == 0 && *stop != 0)) break;
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
        static_cast<float*>(p.residual)[task] = residual;
    }
    team.sync();  // the memory is free for the next task
}

// One block per task.
__global__ void __launch_bounds__(kLargeThreads)
    sinkhorn_shared_kernel(const SinkhornParams p, const volatile int* stop) {
    extern __shared__ double memory[];
    Team team;
    const Task t = make_task(p, blockIdx.x);
    solve(p, team, blockIdx.x, t, LargeTask(memory, p.Q, p.K, kLargeThreads, true, nullptr), stop);
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
    sinkhorn_teams_kernel(const SinkhornParams p, const TeamPlan plan, const volatile int* stop) {
    const int number = blockIdx.x / plan.blocks;
    Team team(plan.team(p.workspace, number), blockIdx.x % plan.blocks, plan.blocks);
    for (int64_t task = number; task < p.B; task += plan.teams) {
        const Task t = make_task(p, task);
        LargeTask s(plan.task(p.workspace, number), p.Q, p.K, team.threads, false, nullptr);
        s.m = t.plan;
        solve(p, team, task, t, s, stop);
    }
}

}  // namespace paddle_ext::sinkhorn
