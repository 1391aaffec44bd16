// PADDLE on the CPU.

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/params.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

// How a task is solved. Depends on its shape only, never on the batch.
struct Plan {
    bool fits;
    Sharing sharing;
    int64_t summary_bytes, scratch_bytes;

    int64_t workspace_bytes() const { return summary_bytes + sharing.workers * scratch_bytes; }
};

Plan make_plan(const PaddleParams& p, const PaddleKernels& level, int at, int threads) {
    const auto& n = p.size;
    const double Q = double(n.Q), K = double(n.K), D = double(n.D), S = double(n.S);
    // An iteration costs Q Q K here and 2 Q K D with explicit prototypes, which are slower for
    // small tasks.
    const bool fits = n.Q <= 512 || (n.Q <= 2 * n.D && n.Q <= 4096);
    // The products at the start, then a few dozen iterations over all queries and classes.
    const double task = S * D + Q * (Q + K) * D + 50.0 * Q * K;
    const Sharing sharing = share_threads(n.B, threads, task, 0);
    return {fits, sharing, n.support_shared ? level.summary_bytes[at](p) : 0,
            level.scratch_bytes[at](p)};
}

template <typename Real>
Real nth(Real* values, int64_t count, int64_t rank) {
    // nth_element needs an order, and NaN has none.
    if (std::any_of(values, values + count, [](Real x) { return std::isnan(x); })) return NAN;
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

}  // namespace

float select_rank(float* values, int64_t count, int64_t rank) { return nth(values, count, rank); }

double select_rank(double* values, int64_t count, int64_t rank) { return nth(values, count, rank); }

int64_t workspace_cpu(const PaddleParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const Plan plan = make_plan(p, cpu_kernels().paddle, at, threads);
    return plan.fits ? plan.workspace_bytes() : kTooLarge;
}

void run_cpu(const PaddleParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const PaddleKernels& level = cpu_kernels().paddle;
    const Plan plan = make_plan(p, level, at, threads);
    require(plan.fits, "a task is too large for this solver");
    require_workspace(p.workspace_bytes, plan.workspace_bytes());
    char* const base = static_cast<char*>(p.workspace);
    char* const scratch = base + plan.summary_bytes;
    const PaddleCall call{&p, base};
    if (p.size.support_shared) level.summarise_support[at](call);
    share_tasks(p.size.B, plan.sharing, [&](int64_t task, int worker, int) {
        level.solve_task[at](call, task, scratch + worker * plan.scratch_bytes);
    });
}

}  // namespace paddle_ext
