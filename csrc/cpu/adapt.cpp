#include "cpu/adapt.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const AdaptParams& p, int threads) {
    const double iterations = std::min(p.max_iter, 20);  // typical for a task
    // Costs in multiplications: about 20 for an exponential, 100 for the digammas of a class.
    const double entries = double(p.Q) * double(p.K);
    const double task = 20.0 * entries + (2.0 * entries + 100.0 * double(p.K)) * iterations;
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t adapt_cpu_workspace(const AdaptParams& p, int threads) {
    const int at = precision(p.dtype, "logits");
    return scratch_of_workers(cpu_kernels().adapt, at, p, make_sharing(p, threads));
}

void adapt_cpu(const AdaptParams& p, int threads) {
    solve_tasks(cpu_kernels().adapt, precision(p.dtype, "logits"), p, make_sharing(p, threads));
}

}  // namespace paddle_ext
