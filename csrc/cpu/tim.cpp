#include "cpu/tim.h"

#include <algorithm>

#include "common/check.h"
#include "common/parallel.h"
#include "cpu/levels.h"

namespace paddle_ext {

namespace {

// Starting the threads of an iteration costs about as much as this many multiplications.
constexpr double kIterationThreads = 5e6;

struct TimThreads {
    int tasks;   // solved at once
    int inside;  // threads of one task
};

// Each task to a thread, or, when they are few and large, all threads to each task in turn.
TimThreads share_threads(const TimSizes& n, int threads) {
    const double work = double(n.S + n.Q) * double(n.K) * double(n.D);
    if (n.B < threads && work > kIterationThreads) return {1, threads};
    return {std::max(1, int(std::min<int64_t>(threads, n.B))), 1};
}

}  // namespace

int64_t tim_cpu_workspace(const TimParams& p, int threads) {
    const TimThreads share = share_threads(p.size, threads);
    return share.tasks * cpu_kernels().tim.scratch_bytes[precision(p.dtype, "features")](p);
}

void tim_cpu(const TimParams& p, int threads) {
    const int at = precision(p.dtype, "features");
    const TimKernels& level = cpu_kernels().tim;
    const TimThreads share = share_threads(p.size, threads);
    const int64_t scratch = level.scratch_bytes[at](p);
    require(p.workspace_bytes >= share.tasks * scratch, "workspace of ", p.workspace_bytes,
            " bytes, expected ", share.tasks * scratch);
    char* const base = static_cast<char*>(p.workspace);
    parallel_for(p.size.B, share.tasks, [&](int64_t task, int worker) {
        level.solve_task[at](p, share.inside, task, base + worker * scratch);
    });
}

}  // namespace paddle_ext
