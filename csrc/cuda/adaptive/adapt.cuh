// Shared by both kernels of `adapt`: the update of the prior, and the reported results of a task.
#pragma once

#include "common/adapt.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

// Underflow in the likelihoods is negligible for a sum of at least this. A row with less is
// recomputed from its logits.
constexpr float kFaint = 1e-28f;

// --- gamma functions in float, with fast GPU instructions ----------------------------------------

__device__ inline float inverse(float x) { return __fdividef(1.0f, x); }

// The recurrence of common/adapt.h in partial fractions: P'/P = w sum_i 1 / (t + c_i).
struct Fractions {
    float t, w, a, b, c;  // a, b, c = 1 / t, 1 / (t + 4), 1 / (t + 6)

    __device__ explicit Fractions(float x)
        : t(x * (x + 5.0f)), w(2.0f * x + 5.0f), a(inverse(t)), b(inverse(t + 4.0f)),
          c(inverse(t + 6.0f)) {}

    __device__ float sum() const { return a + b + c; }
    __device__ float squares() const {
        return w * w * (a * a + b * b + c * c) - 2.0f * sum();  // of the 1 / (x + i)
    }
};

__device__ inline float digamma(float x) {
    const Fractions p(x);
    const float r = inverse(x + 6.0f), s = r * r;
    return __logf(x + 6.0f) - 0.5f * r - s * (1.0f / 12 - s * (1.0f / 120 - s * (1.0f / 252))) -
           p.w * p.sum();
}

// digamma(a + n) - digamma(a), and the same for trigamma. Written so that nothing cancels: under a
// strong prior these differences are far smaller than the values.
__device__ inline Polygamma<float> polygamma_growth(float n, float a) {
    const float x = a + n;
    const Fractions p(a), q(x);
    const float r0 = inverse(a + 6.0f), r1 = inverse(x + 6.0f), s0 = r0 * r0, s1 = r1 * r1;
    const float grown = -n * r0 * r1;                                        // r1 - r0
    const float farther = n * (2.0f * a + n + 5.0f);                         // q.t - p.t
    const float fractions = -farther * (p.a * q.a + p.b * q.b + p.c * q.c);  // q.sum() - p.sum()
    const auto tail = [](float s) { return s * (1.0f / 12 - s * (1.0f / 120 - s * (1.0f / 252))); };
    const auto end = [](float r, float s) {
        return r * s * (1.0f / 6 - s * (1.0f / 30 - s * (1.0f / 42)));
    };
    return {log1pf(n * r0) - 0.5f * grown - (tail(s1) - tail(s0)) -
                (q.w * fractions + 2.0f * n * p.sum()),
            grown + 0.5f * grown * (r0 + r1) + (end(r1, s1) - end(r0, s0)) +
                (q.squares() - p.squares())};
}

// Over the classes of a task: sums of slope and curvature, and the largest change.
template <typename Real>
struct Update {
    Real slope, curvature, moved;
};

// Over the block, in a fixed order; every thread gets the result. Another barrier is needed between
// two calls that use the same scratch.
template <typename Real>
__device__ Update<Real> block_reduce(Update<Real> own, Update<Real>* scratch) {
    own = {warp_sum(own.slope), warp_sum(own.curvature), warp_max(own.moved)};
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
    __syncthreads();
    Update<Real> all = scratch[0];
    for (int warp = 1; warp < int(blockDim.x / 32); ++warp) {
        all.slope += scratch[warp].slope;
        all.curvature += scratch[warp].curvature;
        all.moved = fmax(all.moved, scratch[warp].moved);
    }
    return all;
}

// A measure of a task; 1 for all classes unless they are given.
template <bool kGiven>
struct Measure {
    const float* values;  // [K]

    __device__ Measure(const AdaptParams& p, int64_t task, int64_t prior)
        : values(floats(p.measures) + (task * p.priors + prior) * p.K) {}
    __device__ float operator[](int64_t k) const { return kGiven ? values[k] : 1.0f; }
};

// The state of a task's loop; the same in all threads of its block.
struct Loop {
    float a = float(kFirstConcentration), least = float(kMinConcentration);
    float moved = 0;  // largest change of a count in the last iteration
    int iterations = 0;
    int prior = 0;     // the number of the measure, ...
    double bound = 0;  // ... and what it led to

    __device__ bool goes_on(const AdaptParams& p) const {
        return iterations < p.max_iter && (p.tol <= 0 || double(moved) > p.tol);
    }
};

// A shift that the kernels subtract from the dual, which changes no probability: roughly the dual
// of a class that holds all queries, so that its exponential is near one.
__device__ inline float dual_shift(const AdaptParams& p) {
    return logf(float(p.weight) * float(p.Q));
}

// The next concentration and dual from the counts; `before` holds those of the previous iteration.
// set(k, e) receives the dual minus its shift.
template <bool kGiven, typename Set>
__device__ void update_prior(Loop& loop, const AdaptParams& p, const Measure<kGiven>& measure,
                             const float* counts, float* before, const Set& set,
                             Update<float>* scratch) {
    const float a = loop.a, K = float(p.K), shift = dual_shift(p);
    Update<float> own{0, 0, 0};
    for (int64_t i = threadIdx.x; i <= p.K; i += blockDim.x) {
        const bool is_class = i < p.K;
        const float count = is_class ? counts[i] : float(p.weight) * float(p.Q);
        const float m = is_class ? measure[i] : K;
        if (m > 0) {
            const Polygamma<float> growth = polygamma_growth(count, m * a);
            own.slope += (is_class ? m : -m) * growth.digamma;
            own.curvature += (is_class ? m * m : -m * m) * growth.trigamma;
        }
        if (!is_class) continue;
        own.moved = fmaxf(own.moved, fabsf(count - before[i]));
        before[i] = count;
    }
    const Update<float> all = block_reduce(own, scratch);
    loop.a = next_concentration(loop.a, all.slope, all.curvature, loop.least);
    loop.moved = all.moved;
    ++loop.iterations;
    for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) {
        const float m = measure[k];
        set(k, m > 0 ? digamma(counts[k] + m * loop.a) - shift : float(kImpossible));
    }
}

// The bound, for all threads. The shift is subtracted from `dual` and from the dual in `normalisers`.
template <bool kGiven>
__device__ double bound_of(const AdaptParams& p, const Measure<kGiven>& measure, const Loop& loop,
                           double normalisers, const float* counts, const float* dual,
                           double* scratch) {
    double bound = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) {
        bound += class_bound(counts[k], loop.a, measure[k], dual[k]);
    }
    return block_sum(bound, scratch) + p.weight * normalisers +
           whole_bound(loop.a, p.weight * double(p.Q), double(p.K));
}

// Writes the reported results of a task, once its probabilities are written.
template <bool kGiven>
__device__ void write_task(const AdaptParams& p, int64_t task, const Loop& loop, double normalisers,
                           const float* counts, const float* dual, double* scratch) {
    const Measure<kGiven> measure(p, task, loop.prior);
    // First: the counts may be where the proportions go.
    const double bound = bound_of(p, measure, loop, normalisers, counts, dual, scratch);
    const double mass = p.weight * double(p.Q) + double(p.K) * loop.a;
    const double constant = polygamma(mass).digamma - double(dual_shift(p));
    for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) {
        const double part = double(counts[k]) + double(loop.a) * double(measure[k]);
        floats(p.proportions)[task * p.K + k] = float(part / mass);
        floats(p.dual)[task * p.K + k] = float(double(dual[k]) - constant);
    }
    if (threadIdx.x != 0) return;
    floats(p.concentration)[task] = loop.a;
    floats(p.criterion)[task] = loop.moved;
    floats(p.bound)[task] = float(bound);
    p.iterations[task] = loop.iterations;
    p.chosen[task] = loop.prior;
}

// Runs the loop under each measure and leaves the dual of the one with the largest bound.
//   set(k, e)                sets the dual of a class
//   iterate(loop, measure)   one iteration
//   normalise()              counts the queries and returns the sum of their normalisers
//   best                     [K] the best dual so far
template <bool kGiven, typename Set, typename Iterate, typename Normalise>
__device__ Loop learn(const AdaptParams& p, int64_t task, const float* counts, float* before,
                      const float* dual, float* best, const Set& set, const Iterate& iterate,
                      const Normalise& normalise, double* scratch) {
    Loop found;
    float least = found.least;
    for (int prior = 0; prior == 0 || (kGiven && prior < p.priors); ++prior) {
        const Measure<kGiven> measure(p, task, prior);
        for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) {
            set(k, first_dual(measure[k]));
            before[k] = 0;
        }
        __syncthreads();
        Loop loop;
        loop.prior = prior;
        Race race;
        if (prior > 0) {
            loop.a = float(kMaxConcentration);
            loop.least = least;
            race.rival = found.bound;
        }
        const auto bound = [&] {
            return bound_of(p, measure, loop, normalise(), counts, dual, scratch);
        };
        bool lost = false;
        for (bool over = false; !over && !lost;) {
            iterate(loop, measure);
            over = !loop.goes_on(p);
            if (kGiven && !over && race.due(loop.iterations)) {
                lost = race.lost(bound(), loop.iterations);
            }
        }
        if constexpr (!kGiven) return loop;
        if (prior == 0) least = loop.a;
        if (lost) continue;
        if (prior + 1 < p.priors || !race.decided()) loop.bound = bound();
        if (!race.decided() && !(loop.bound > found.bound)) continue;
        found = loop;
        for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) best[k] = dual[k];
    }
    for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) set(k, best[k]);
    __syncthreads();
    return found;
}

// --- rows, by a warp -----------------------------------------------------------------------------

// The logits of a task, of any type: each is read once, so the type can be chosen at run time.
struct Logits {
    const void* base;
    DType dtype;
    int64_t first, K;  // offset of the task, and its classes

    __device__ Logits(const AdaptParams& p, int64_t task)
        : base(p.logits), dtype(p.dtype), first(task * p.Q * p.K), K(p.K) {}

    // -inf becomes a number that stays finite after subtracting any offset.
    __device__ float operator()(int64_t q, int64_t k) const {
        const int64_t at = first + q * K + k;
        const float value = dtype == DType::kFloat32 ? floats(base)[at]
                            : dtype == DType::kFloat16
                                ? to_float(static_cast<const __half*>(base)[at])
                                : to_float(static_cast<const __nv_bfloat16*>(base)[at]);
        return fmaxf(value, Range<float>::kMinusInfinity / 4);
    }

    // The largest of a row. It is subtracted before the dual is added, or a common offset would
    // swallow the dual.
    __device__ float offset(int64_t q) const {
        float most = Range<float>::kMinusInfinity;
        for (int64_t k = threadIdx.x % 32; k < K; k += 32) most = fmaxf(most, (*this)(q, k));
        return warp_max(most);
    }

    // The likelihoods of a row: exp(l - max l). Returns the maximum.
    __device__ float likelihood(int64_t q, float* to) const {
        const float most = offset(q);
        for (int64_t k = threadIdx.x % 32; k < K; k += 32) to[k] = expf((*this)(q, k) - most);
        return most;
    }
};

}  // namespace paddle_ext
