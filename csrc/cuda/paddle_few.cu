// The iteration of a task of at most 32 classes. All classes take part in every step: M and U stay
// in registers, and no class falls asleep.
//
// A thread has two queries, as everywhere, and the classes from 2 Columns quarter on. The first
// warp does the v-step and the w-step, lane k for class k.

#include "cuda/paddle_start.cuh"

namespace paddle_ext {

namespace {

// The u-step: changes of the probabilities of this thread's two queries. Returns whether any moved.
template <int Columns>
__device__ inline bool softmax_few(const Block& b, const float2* lines,
                                   const float2 (&m)[2 * Columns], const float2 (&u)[2 * Columns],
                                   float2 (&change)[2 * Columns]) {
    float2 best = make_float2(Range<float>::kMinusInfinity, Range<float>::kMinusInfinity);
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        const float2 line = lines[2 * Columns * b.quarter + i];
        change[i] = make_float2(fmaf(m[i].x, line.x, line.y), fmaf(m[i].y, line.x, line.y));
        best = make_float2(fmaxf(best.x, change[i].x), fmaxf(best.y, change[i].y));
    }
    best = make_float2(quad_max(best.x), quad_max(best.y));
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        change[i].x = exp2_approx(change[i].x - best.x);
        change[i].y = exp2_approx(change[i].y - best.y);
        sum.x += change[i].x;
        sum.y += change[i].y;
    }
    sum = make_float2(quad_sum(sum.x), quad_sum(sum.y));
    // Rows beyond the last query hold nothing.
    const float inverse_x = b.row < b.Q ? reciprocal(sum.x) : 0.0f;
    const float inverse_y = b.row + 1 < b.Q ? reciprocal(sum.y) : 0.0f;
    bool moved = false;
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        change[i].x = change[i].x * inverse_x - u[i].x;
        change[i].y = change[i].y * inverse_y - u[i].y;
        moved = moved | has_moved(b, u[i], change[i]);
    }
    return moved;
}

// Applies the changes to M and U, and writes the sums over this warp's queries.
template <int Columns>
__device__ inline void apply_few(const Block& b, const float2 (&change)[2 * Columns],
                                 float2 (&m)[2 * Columns], float2 (&u)[2 * Columns]) {
    constexpr int kMine = 2 * Columns;
    float2 product[kMine];
    multiply_changes<Columns>(b.halves, b.s.delta, b.warps, b.lane, b.places, b.unscale, product);
    float sums[4 * kMine];  // by quantity, then by class
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
        const float2 d = change[i];
        sums[kMine + i] = d.x + d.y;
        sums[2 * kMine + i] = d.x * product[i].x + d.y * product[i].y;
        sums[3 * kMine + i] = d.x * m[i].x + d.y * m[i].y;
        u[i] = make_float2(u[i].x + d.x, u[i].y + d.y);
        m[i] = make_float2(m[i].x + product[i].x, m[i].y + product[i].y);
        sums[i] = u[i].x + u[i].y;
    }
    sum_over_pairs<Columns>(sums, b.pair);
    float* const to = b.s.part + (4 * b.warp + b.pair / 2) * kFewClasses + kMine * b.quarter +
                      b.pair % 2 * Columns;
#pragma unroll
    for (int i = 0; i < Columns; ++i) to[i] = sums[i];
}

// The v-step and the w-step, by the first warp. `lines` is where the u-step reads them, for 32
// classes.
__device__ inline void update_few(const Block& b, float2* lines) {
    float total[4] = {};
    for (int warp = 0; warp < b.warps; ++warp) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            total[i] += b.s.part[(4 * warp + i) * kFewClasses + b.lane];
        }
    }
    const int k = b.lane;
    if (k >= b.K) return;
    update_class(b, k, total);
    lines[k] = logit_line(b, b.s.mass[k], b.s.norm[k], dual_term(b, b.s.held[k]));
}

template <int Columns>
__device__ inline void write_few(const Block& b, int64_t task, const float2 (&u)[2 * Columns]) {
    const PaddleParams& p = b.c.call;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int q = b.row + r;
        float* const out = static_cast<float*>(p.probabilities) + (task * b.Q + q) * b.K;
        float best = -1.0f;
        int label = 0;
#pragma unroll
        for (int i = 0; i < 2 * Columns; ++i) {
            const int k = 2 * Columns * b.quarter + i;
            const float value = fmaxf(r == 0 ? u[i].x : u[i].y, 0.0f);
            if (q < b.Q && k < b.K) out[k] = value;
            if (k < b.K && value > best) {
                best = value;
                label = k;
            }
        }
        label = warp_argmax<4>(best, label);
        if (b.quarter == 0 && q < b.Q) p.labels[task * b.Q + q] = label;
    }
    write_classes(b, task);
}

// A whole task; the initial slopes and biases of the logits are in shared memory.
template <int Columns>
__device__ Outcome solve_few(const Block& b, int64_t task, float tol, int max_iter) {
    float2 m[2 * Columns], u[2 * Columns], change[2 * Columns];
#pragma unroll
    for (int i = 0; i < 2 * Columns; ++i) {
        m[i] = load_cell(b, 2 * Columns * b.quarter + i < b.K ? 2 * Columns * b.quarter + i : -1).m;
        u[i] = make_float2(0, 0);
    }
    float2* const lines = reinterpret_cast<float2*>(b.s.part + 4 * b.warps * kFewClasses);
    if (b.warp == 0) {  // while others sum; padding classes get no logit
        lines[b.lane] =
            b.lane < b.K ? b.s.line[b.lane] : make_float2(0, Range<float>::kMinusInfinity);
    }
    __syncthreads();
    Outcome outcome{max_iter, 0.0f};
    for (int iteration = 1;; ++iteration) {
        const bool moved = softmax_few<Columns>(b, lines, m, u, change);
        place_changes<Columns>(b.s.delta, b.warp, b.places, change);
        if (!__syncthreads_or(moved)) {  // the changes of all warps are complete
            // Every further iteration would repeat this one exactly.
            outcome = {tol > 0.0f ? iteration : max_iter, 0.0f};
            break;
        }
        apply_few<Columns>(b, change, m, u);
        __syncthreads();  // the sums of all warps are complete, the changes have been read
        if (b.warp == 0) update_few(b, lines);
        __syncthreads();  // the classes are up to date
        if (given_up(b.c.stop, iteration)) break;
        if (tol == 0.0f && iteration < max_iter) continue;
        outcome.criterion = warp_sum(b.lane < b.K ? b.s.shift[b.lane] : 0.0f) / float(b.K);
        if (tol > 0.0f && !(outcome.criterion > tol)) {
            outcome.iterations = iteration;
            break;
        }
        if (iteration == max_iter) break;
    }
    write_few<Columns>(b, task, u);
    return outcome;
}

// The number of blocks per multiprocessor that leaves them enough registers.
template <int MaxThreads, int Columns>
__global__ void __launch_bounds__(MaxThreads, MaxThreads > 160 ? 1
                                              : Columns > 3    ? 3
                                                               : 4) solve_few_kernel(Chunk c) {
    solve_tasks<true>(c, [&](const Block& b, int64_t task, float tol) {
        return solve_few<Columns>(b, task, tol, c.call.max_iter);
    });
}

template <int MaxThreads>
void launch_for(const Chunk& c) {
    switch (ceil_div(c.call.size.K, int64_t(kColumns))) {
        case 1: return launch_resident(solve_few_kernel<MaxThreads, 1>, c);
        case 2: return launch_resident(solve_few_kernel<MaxThreads, 2>, c);
        case 3: return launch_resident(solve_few_kernel<MaxThreads, 3>, c);
        default: return launch_resident(solve_few_kernel<MaxThreads, 4>, c);
    }
}

}  // namespace

void launch_few(const Chunk& c) { c.plan.Qp <= 80 ? launch_for<160>(c) : launch_for<512>(c); }

}  // namespace paddle_ext
