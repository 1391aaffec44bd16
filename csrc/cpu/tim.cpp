#include "cpu/tim.h"

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const TimParams& p, int threads) {
    const auto& n = p.size;
    const double iteration = double(n.S + n.Q) * double(n.K) * double(n.D);
    return share_threads(n.B, threads, double(p.max_iter) * iteration, iteration);
}

}  // namespace

int64_t tim_cpu_workspace(const TimParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    return make_sharing(p, threads).workers * cpu_kernels().tim.scratch_bytes[at](p);
}

void tim_cpu(const TimParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const TimKernels& level = cpu_kernels().tim;
    const Sharing sharing = make_sharing(p, threads);
    const int64_t scratch = level.scratch_bytes[at](p);
    require_workspace(p.workspace_bytes, sharing.workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    share_tasks(p.size.B, sharing, [&](int64_t task, int worker, int inside) {
        level.solve_task[at](p, inside, task, base + worker * scratch);
    });
}

}  // namespace paddle_ext
