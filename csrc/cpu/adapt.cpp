#include "cpu/adapt.h"

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const AdaptParams& p, int threads) {
    const double iterations = std::min(p.max_iter, 20);  // what a task takes, in practice
    // An exponential is worth some 20 multiplications, the digamma functions of a class 100.
    const double entries = double(p.Q) * double(p.K);
    const double task = 20.0 * entries + (2.0 * entries + 100.0 * double(p.K)) * iterations;
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t adapt_cpu_workspace(const AdaptParams& p, int threads) {
    const int at = precision(p.dtype, "logits");
    return make_sharing(p, threads).workers * cpu_kernels().adapt.scratch_bytes[at](p);
}

void adapt_cpu(const AdaptParams& p, int threads) {
    const int at = precision(p.dtype, "logits");
    const AdaptKernels& level = cpu_kernels().adapt;
    const Sharing sharing = make_sharing(p, threads);
    const int64_t scratch = level.scratch_bytes[at](p);
    require_workspace(p.workspace_bytes, sharing.workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    share_tasks(p.B, sharing, [&](int64_t task, int worker, int) {
        level.solve_task[at](p, task, base + worker * scratch);
    });
}

}  // namespace paddle_ext
