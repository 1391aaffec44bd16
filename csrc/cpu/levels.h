// The SIMD levels of the CPU code: one set of kernels each, the best usable one chosen at run time.
// In all tables, index 0 is float, 1 is double.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "common/parallel.h"
#include "common/params.h"
#include "common/workspace.h"

namespace paddle_ext {

// --- kernels that solve the tasks of a call one by one -------------------------------------------

// Of a call, in multiplications; an exponential costs about 20. It decides how many threads pay.
struct Work {
    int64_t tasks;
    double task;
    double iteration;  // of a task that can use several threads; else 0
};

template <typename Params>
struct TaskKernels {
    const char* array;  // whose dtype is the precision, for errors
    Work (*work)(const Params&);
    int64_t (*scratch_bytes[2])(const Params&);
    // `threads` is 1 unless the work has an iteration.
    void (*solve_task[2])(const Params&, int64_t task, void* scratch, int threads);
    // What all tasks share comes before their scratch, in `p.workspace`; or null.
    int64_t (*shared_bytes[2])(const Params&) = {};
    void (*share[2])(const Params& p) = {};
};

template <typename List>
struct TaskTables;
template <typename... Params>
struct TaskTables<ParamsList<Params...>> {
    using Tuple = std::tuple<TaskKernels<Params>...>;
};

// The element of rank `rank` of `values` in ascending order; reorders them. NaN if any is NaN.
template <typename Real>
Real select_rank(Real* values, int64_t count, int64_t rank);

// --- rows of large tasks -------------------------------------------------------------------------

constexpr int64_t kRowsOfPart = 64;  // rows summed together, whatever the threads

// The sums over one part of the rows of a task.
struct AssignSums {
    double* held;     // [K]
    double log_sums;  // or the faint rows of `count`
    double leads[2];
};

// The probability of a class, and its row.
struct ClassEntry {
    int64_t row;
    double value;
};

// `row` is scratch memory for one row of classes.
struct AssignKernels {
    int64_t (*row_bytes[2])(int64_t K);
    void (*assign_rows[2])(const AssignParams&, int64_t task, int64_t first, int64_t end, void* row,
                           AssignSums& sums);
    void (*count_rows[2])(const CountParams&, int64_t task, int64_t first, int64_t end,
                          AssignSums& sums);
    // Adds to the sums of class k.
    void (*add_rows[2])(const SumsParams&, int64_t k, const ClassEntry* entries, int64_t count);
};

// The rounds of a batch, for some rows of a task.
struct RoundKernels {
    void (*weigh_rows[2])(const WeighParams&, int64_t task, int64_t first, int64_t end,
                          AssignSums& sums);
    void (*absorb_rows[2])(const AbsorbParams&, int64_t task, int64_t first, int64_t end);
    void (*claim_rows[2])(const ClaimParams&, int64_t task, int64_t first, int64_t end);
};

// --- levels --------------------------------------------------------------------------------------

struct CpuKernels {
    const char* name;
    AssignKernels assign;
    RoundKernels rounds;
    void (*coordinates[2])(const CoordinatesParams&, int64_t first, int64_t end);  // rows
    TaskTables<OneByOne>::Tuple tasks;
};

// The current level. Read it once per call: another thread may switch levels meanwhile.
const CpuKernels& cpu_kernels();

const CpuKernels& cpu_kernels_baseline();
#if PADDLE_EXT_X86
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();
#endif

// Index of a precision in the tables. `what` names the array in errors.
int precision(DType dtype, const char* what);

std::string simd_level();
std::vector<std::string> simd_levels();  // usable on this machine, best last
void set_simd_level(const std::string& name);

// --- the launcher --------------------------------------------------------------------------------
//
// The launcher of kernels that solve the tasks of a call one by one, each thread with its own
// scratch memory. A kernel is found by the type of its parameters; those of another shape have
// functions of the same names in common/params.h.

template <typename Params>
struct TaskLaunch {
    const TaskKernels<Params>& kernels = std::get<TaskKernels<Params>>(cpu_kernels().tasks);
    int at;  // the precision
    Work work;
    Sharing sharing;
    int64_t shared_bytes, scratch_bytes;

    TaskLaunch(const Params& p, int threads) : at(precision(p.dtype, kernels.array)) {
        work = kernels.work(p);
        sharing = share_threads(work.tasks, threads, work.task, work.iteration);
        shared_bytes = kernels.shared_bytes[at] == nullptr ? 0 : kernels.shared_bytes[at](p);
        scratch_bytes = kernels.scratch_bytes[at](p);
    }

    int64_t workspace_bytes() const {
        if (scratch_bytes == kTooLarge) return kTooLarge;
        return shared_bytes + sharing.workers * scratch_bytes;
    }
};

template <typename Params>
int64_t workspace_cpu(const Params& p, int threads) {
    return TaskLaunch<Params>(p, threads).workspace_bytes();
}

template <typename Params>
void run_cpu(const Params& p, int threads) {
    const TaskLaunch<Params> launch(p, threads);
    require(launch.scratch_bytes != kTooLarge, "a task is too large for this solver");
    require_workspace(p.workspace_bytes, launch.workspace_bytes());
    if (launch.shared_bytes > 0) launch.kernels.share[launch.at](p);
    char* const base = static_cast<char*>(p.workspace) + launch.shared_bytes;
    share_tasks(launch.work.tasks, launch.sharing, [&](int64_t task, int worker, int inside) {
        launch.kernels.solve_task[launch.at](p, task, base + worker * launch.scratch_bytes, inside);
    });
}

}  // namespace paddle_ext
