#include "cpu/paddle.h"

#include <algorithm>

#include "common/check.h"
#include "common/parallel.h"
#include "cpu/levels.h"

namespace paddle_ext {

namespace {

// Multiplications of one task: the products at the start, then some dozens of iterations.
double task_work(const PaddleSizes& n) {
    const double Q = double(n.Q), K = double(n.K), D = double(n.D), S = double(n.S);
    return S * D + Q * (Q + K) * D + 50.0 * Q * K;
}

PaddlePlan make_plan(const PaddleSizes& n) {
    // An iteration costs Q Q K in Gram form and 2 Q K D with explicit prototypes.
    const bool gram = n.Q <= 2 * n.D && n.Q <= 4096;
    return {gram, !gram && double(n.Q) * double(n.K) * double(n.D) > 2e6};
}

// Starting a thread costs about as much as this many multiplications.
constexpr double kThreadWork = 5e5;

int useful_threads(const PaddleSizes& n, int threads) {
    const double parts = double(n.B) * task_work(n) / kThreadWork;
    return std::max(1, int(std::min({double(threads), double(n.B), parts})));
}

}  // namespace

float select_rank(float* values, int64_t count, int64_t rank) {
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

double select_rank(double* values, int64_t count, int64_t rank) {
    std::nth_element(values, values + rank, values + count);
    return values[rank];
}

int64_t paddle_cpu_workspace(const PaddleParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const PaddlePlan plan = make_plan(p.size);
    const int workers = plan.threads_inside ? 1 : useful_threads(p.size, threads);
    const PaddleKernels& level = cpu_kernels().paddle;
    const int64_t summary = p.size.support_shared ? level.summary_bytes[at](p) : 0;
    return summary + workers * level.scratch_bytes[at](p, plan);
}

void paddle_cpu(const PaddleParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const PaddleKernels& level = cpu_kernels().paddle;
    const PaddlePlan plan = make_plan(p.size);
    const int workers = plan.threads_inside ? 1 : useful_threads(p.size, threads);
    const int64_t summary = p.size.support_shared ? level.summary_bytes[at](p) : 0;
    const int64_t scratch = level.scratch_bytes[at](p, plan);
    require(p.workspace_bytes >= summary + workers * scratch, "workspace of ", p.workspace_bytes,
            " bytes, expected ", summary + workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    const PaddleCall call{&p, plan, plan.threads_inside ? threads : 1, base};
    if (p.size.support_shared) level.summarise_support[at](call);
    parallel_for(p.size.B, workers, [&](int64_t task, int worker) {
        level.solve_task[at](call, task, base + summary + worker * scratch);
    });
}

}  // namespace paddle_ext
