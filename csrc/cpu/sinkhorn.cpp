#include "cpu/sinkhorn.h"

#include <algorithm>

#include "common/check.h"
#include "common/parallel.h"
#include "cpu/levels.h"

namespace paddle_ext {

namespace {

// Starting a thread costs about as much as this many multiplications.
constexpr double kThreadWork = 5e5;

int useful_threads(const SinkhornParams& p, int threads) {
    const double iterations = std::min(p.max_iter, 20);  // what a task takes at least, in practice
    const double parts =
        double(p.B) * double(p.Q) * double(p.K) * (20.0 + 2.0 * iterations) / kThreadWork;
    return std::max(1, int(std::min({double(threads), double(p.B), parts})));
}

}  // namespace

// Does not know max_iter yet: at least what the call will need.
int64_t sinkhorn_cpu_workspace(const SinkhornParams& params, int threads) {
    const int at = precision(params.dtype, "cost");
    const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, params.B));
    return workers * cpu_kernels().sinkhorn.scratch_bytes[at](params);
}

void sinkhorn_cpu(const SinkhornParams& p, int threads) {
    const int at = precision(p.dtype, "cost");
    const SinkhornKernels& level = cpu_kernels().sinkhorn;
    const int workers = useful_threads(p, threads);
    const int64_t scratch = level.scratch_bytes[at](p);
    require(p.workspace_bytes >= workers * scratch, "workspace of ", p.workspace_bytes,
            " bytes, expected ", workers * scratch);
    char* const base = static_cast<char*>(p.workspace);
    parallel_for(p.B, workers, [&](int64_t task, int worker) {
        level.solve_task[at](p, task, base + worker * scratch);
    });
}

}  // namespace paddle_ext
