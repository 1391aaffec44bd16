// The launcher of kernels that solve the tasks of a call one by one, each thread with its own
// scratch memory. A kernel is found by the type of its parameters; those of another shape have
// functions of the same names in common/params.h and common/large.h.
#pragma once

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

template <typename Params>
struct TaskLaunch {
    void (*solve)(const Params&, int64_t task, void* scratch, int threads);
    Work work;
    Sharing sharing;
    int64_t scratch_bytes;

    TaskLaunch(const Params& p, int threads) {
        const auto& kernels = std::get<TaskKernels<Params>>(cpu_kernels().tasks);
        const int at = precision(p.dtype, kernels.array);
        solve = kernels.solve_task[at];
        work = kernels.work(p);
        sharing = share_threads(work.tasks, threads, work.task, work.iteration);
        scratch_bytes = kernels.scratch_bytes[at](p);
    }

    int64_t workspace_bytes() const { return sharing.workers * scratch_bytes; }
};

template <typename Params>
int64_t workspace_cpu(const Params& p, int threads) {
    return TaskLaunch<Params>(p, threads).workspace_bytes();
}

template <typename Params>
void run_cpu(const Params& p, int threads) {
    const TaskLaunch<Params> launch(p, threads);
    require_workspace(p.workspace_bytes, launch.workspace_bytes());
    char* const base = static_cast<char*>(p.workspace);
    share_tasks(launch.work.tasks, launch.sharing, [&](int64_t task, int worker, int inside) {
        launch.solve(p, task, base + worker * launch.scratch_bytes, inside);
    });
}

}  // namespace paddle_ext
