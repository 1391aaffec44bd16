#include "cpu/step.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const StepParams& p, int threads) {
    // One exponential and one logarithm each.
    const double task = 60.0 * double(p.Q) * double(p.K);
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t step_cpu_workspace(const StepParams& p, int threads) {
    const int at = precision(p.dtype, "given");
    return scratch_of_workers(cpu_kernels().step, at, p, make_sharing(p, threads));
}

void step_cpu(const StepParams& p, int threads) {
    solve_tasks(cpu_kernels().step, precision(p.dtype, "given"), p, make_sharing(p, threads));
}

}  // namespace paddle_ext
