#include "cpu/sinkhorn.h"

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const SinkhornParams& p, int threads) {
    const double iterations = std::min(p.max_iter, 20);  // typical minimum for a task
    // Costs in multiplications: about 20 for an exponential, two for an iteration.
    const double task = double(p.Q) * double(p.K) * (20.0 + 2.0 * iterations);
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t sinkhorn_cpu_workspace(const SinkhornParams& p, int threads) {
    const int at = precision(p.dtype, "cost");
    return make_sharing(p, threads).workers * cpu_kernels().sinkhorn.scratch_bytes[at](p);
}

void sinkhorn_cpu(const SinkhornParams& p, int threads) {
    const int at = precision(p.dtype, "cost");
    const SinkhornKernels& level = cpu_kernels().sinkhorn;
    const Sharing sharing = make_sharing(p, threads);
    const int64_t scratch = level.scratch_bytes[at](p);
    require_workspace(p.workspace_bytes, sharing.workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    share_tasks(p.B, sharing, [&](int64_t task, int worker, int) {
        level.solve_task[at](p, task, base + worker * scratch);
    });
}

}  // namespace paddle_ext
