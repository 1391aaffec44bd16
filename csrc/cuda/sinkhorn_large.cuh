// All iterations of a large task in one block: M in shared memory or, if it does not fit, in the
// plan itself, which is global memory and in practice cache. Every sum is taken in a fixed order.
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
    float* part;      // [max(kLargeThreads, K)]  sums of a column over some rows
    float* m;         // [Q, K] or none

    __host__ __device__ LargeTask(void* base, int64_t Q, int64_t K, bool with_m, int64_t* bytes) {
        SharedArena arena(base);
        potentials.take(arena, Q, K);
        row_mass = arena.take<float>(Q);
        col_mass = arena.take<float>(K);
        a = arena.take<float>(Q);
        b = arena.take<float>(K);
        row_sum = arena.take<float>(Q);
        part = arena.take<float>(K > kLargeThreads ? K : kLargeThreads);
        m = arena.take<float>(with_m ? Q * K : 0);
        if (bytes != nullptr) *bytes = round_up(arena.used(), int64_t(256));
    }
};

// row_sum = M b
__device__ inline void sum_rows(const Task& t, const LargeTask& s) {
    const int width = lanes_per_row(t.K);
    for_rows(t.Q, width, [&](int q, int lane) {
        float sum = 0.0f;
        if (q >= 0) {
            const float* const row = s.m + int64_t(q) * t.K;
            for (int64_t start = lane; start < t.K; start += kTerms * width) {
                const int64_t end = min(start + kTerms * width, int64_t(t.K));
                float some = 0.0f;
                for (int64_t k = start; k < end; k += width) some = fmaf(row[k], s.b[k], some);
                sum += some;
            }
        }
        sum = group_sum(sum, width);
        if (q >= 0 && lane == 0) s.row_sum[q] = sum;
    });
    __syncthreads();
}

// The residual of the current factors, from row_sum.
__device__ inline float row_residual(const Task& t, const LargeTask& s) {
    __shared__ unsigned worst_of[kLargeThreads / 32];
    float worst = 0.0f;
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) {
        worst = fmaxf(worst, fabsf(s.a[q] * s.row_sum[q] - s.row_mass[q]));
    }
    const unsigned bits = __reduce_max_sync(kAllLanes, __float_as_uint(worst));
    if (threadIdx.x % 32 == 0) worst_of[threadIdx.x / 32] = bits;
    __syncthreads();
    unsigned most = 0;
    for (int w = 0; w < int(blockDim.x) / 32; ++w) most = max(most, worst_of[w]);
    return t.row_total * __uint_as_float(most);
}

// a from row_sum; returns whether one of this thread's has drifted.
__device__ inline bool row_step(const Task& t, const LargeTask& s) {
    bool far = false;
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) {
        far |= drifted(s.row_sum[q], s.row_mass[q]);
        s.a[q] = new_factor(s.row_sum[q], s.row_mass[q]);
    }
    __syncthreads();
    return far;
}

// b from M^T a; reports whether one of this thread's has drifted or is lost. With few columns
// several threads share one, each with every parts-th row.
__device__ inline void column_factors(const Task& t, const LargeTask& s, bool& far, bool& lost) {
    const int parts = max(1, int(blockDim.x) / t.K), step = parts > 1 ? parts * t.K : blockDim.x;
    for (int i = threadIdx.x; i < parts * t.K; i += step) {
        const int k = i % t.K;
        float sum = 0.0f;
        for (int64_t start = i / t.K; start < t.Q; start += kTerms * parts) {
            const int64_t end = min(start + kTerms * parts, int64_t(t.Q));
            float some = 0.0f;
            for (int64_t q = start; q < end; q += parts)
                some = fmaf(s.m[q * t.K + k], s.a[q], some);
            sum += some;
        }
        s.part[i] = sum;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < t.K; k += blockDim.x) {
        float sum = s.part[k];
        for (int i = 1; i < parts; ++i) sum += s.part[i * t.K + k];
        far |= drifted(sum, s.col_mass[k]);
        lost |= is_lost(sum, s.col_mass[k]);
        s.b[k] = new_factor(sum, s.col_mass[k]);
    }
}

// M from the potentials.
__device__ inline void fill(const Task& t, const LargeTask& s) {
    __syncthreads();  // the potentials are in place
    for (int q = threadIdx.x / 32; q < t.Q; q += blockDim.x / 32) {
        for (int k = threadIdx.x % 32; k < t.K; k += 32) {
            const int64_t at = int64_t(q) * t.K + k;
            s.m[at] = element(t, s.potentials, q, k, t.cost[at]);
        }
    }
    __syncthreads();
}

__device__ inline void go_home(const Task& t, const LargeTask& s) {
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) s.a[q] = sqrtf(s.row_mass[q]);
    for (int k = threadIdx.x; k < t.K; k += blockDim.x) s.b[k] = sqrtf(s.col_mass[k]);
}

__device__ inline void absorb_rows(const Task& t, const LargeTask& s) {
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) {
        s.potentials.row_log[q] += absorbed(s.a[q], s.row_mass[q]);
    }
}

__device__ inline void absorb_columns(const Task& t, const LargeTask& s) {
    for (int k = threadIdx.x; k < t.K; k += blockDim.x) {
        s.potentials.col_log[k] += absorbed(s.b[k], s.col_mass[k]);
    }
}

// The row sums again, if a row is lost.
__device__ inline void find_rows(const Task& t, const LargeTask& s) {
    bool lost = false;
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) {
        lost |= is_lost(s.row_sum[q], s.row_mass[q]);
    }
    if (!__syncthreads_or(lost)) return;
    absorb_columns(t, s);
    __syncthreads();  // the potentials of the columns are in place
    centre_rows(t, s.potentials);
    go_home(t, s);
    fill(t, s);
    sum_rows(t, s);
}

// b from M^T a; returns whether a factor of the block has drifted, `far` covering this thread's
// rows. The step is repeated if a column is lost, except the first step, which is handled
// separately.
__device__ inline bool column_step(const Task& t, const LargeTask& s, bool far,
                                   bool first = false) {
    bool lost = false;
    column_factors(t, s, far, lost);
    if (!__syncthreads_or(far)) return false;
    if (first || !__syncthreads_or(lost)) return true;
    absorb_rows(t, s);
    __syncthreads();  // the potentials of the rows are in place
    centre_columns(t, s.potentials);
    go_home(t, s);
    fill(t, s);
    far = lost = false;
    column_factors(t, s, far, lost);
    return __syncthreads_or(far);
}

__device__ inline void absorb(const Task& t, const LargeTask& s) {
    absorb_rows(t, s);
    absorb_columns(t, s);
    go_home(t, s);
    fill(t, s);
}

__device__ inline void first_iteration(const Task& t, const LargeTask& s) {
    start_potentials(t, s.potentials);
    for (int q = threadIdx.x; q < t.Q; q += blockDim.x) s.row_mass[q] = t.row_share(q);
    for (int k = threadIdx.x; k < t.K; k += blockDim.x) {
        s.col_mass[k] = t.col_share(k);
        s.b[k] = 1.0f;
    }
    fill(t, s);
    sum_rows(t, s);
    if (!column_step(t, s, row_step(t, s), true)) return;
    absorb_rows(t, s);
    reduce_columns(t, s.potentials);
    go_home(t, s);
    fill(t, s);
    if (column_step(t, s, false)) absorb(t, s);
}

template <bool kShared>
__global__ void __launch_bounds__(kLargeThreads)
    sinkhorn_large_kernel(const SinkhornParams p, int64_t bytes_per_block,
                          const volatile int* stop) {
    extern __shared__ double memory[];
    void* const base =
        kShared ? static_cast<void*>(memory)
                : static_cast<char*>(p.workspace) + int64_t(blockIdx.x) * bytes_per_block;
    for (int64_t task = blockIdx.x; task < p.B; task += gridDim.x) {
        const Task t = make_task(p, task);
        LargeTask s(base, p.Q, p.K, kShared, nullptr);
        if (!kShared) s.m = t.plan;
        first_iteration(t, s);
        int done = 1;
        float residual;
        for (;; ++done) {
            sum_rows(t, s);
            residual = row_residual(t, s);
            if (stops(p, t, done, residual) || given_up(stop, done)) break;
            find_rows(t, s);
            if (column_step(t, s, row_step(t, s))) absorb(t, s);
        }
        for (int q = threadIdx.x / 32; q < t.Q; q += blockDim.x / 32) {
            for (int k = threadIdx.x % 32; k < t.K; k += 32) {
                const int64_t at = int64_t(q) * t.K + k;
                t.plan[at] = planned(s.a[q], s.m[at], s.b[k], t.row_total);
            }
        }
        if (threadIdx.x == 0) {
            p.iterations[task] = done;
            static_cast<float*>(p.residual)[task] = residual;
        }
        __syncthreads();  // the memory is free for the next task
    }
}

}  // namespace paddle_ext::sinkhorn
