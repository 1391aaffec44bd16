// The SIMD levels of the CPU code: one set of kernels each, the best usable one chosen at run time.
// In all tables, index 0 is float, 1 is double.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "common/large.h"
#include "common/params.h"

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
};

template <typename List>
struct TaskTables;
template <typename... Params>
struct TaskTables<ParamsList<Params...>> {
    using Tuple = std::tuple<TaskKernels<Params>...>;
};

// --- PADDLE --------------------------------------------------------------------------------------

struct PaddleCall {
    const PaddleParams* params;
    void* support_summary;  // shared support: class sums, computed once per call
};

struct PaddleKernels {
    int64_t (*scratch_bytes[2])(const PaddleParams&);
    int64_t (*summary_bytes[2])(const PaddleParams&);
    void (*summarise_support[2])(const PaddleCall&);
    void (*solve_task[2])(const PaddleCall&, int64_t task, void* scratch);
};

// The element of rank `rank` of `values` in ascending order; reorders them. NaN if any is NaN.
float select_rank(float* values, int64_t count, int64_t rank);
double select_rank(double* values, int64_t count, int64_t rank);

// --- rows of large tasks -------------------------------------------------------------------------

constexpr int64_t kRowsOfPart = 64;  // rows summed together, whatever the threads

// The sums over one part of the rows of a task.
struct AssignSums {
    double* held;     // [K]
    double log_sums;  // or the faint rows of `count`
    double leads[2];
};

// The probability of a class, and its row, counted over all tasks.
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
    void (*late_rows[2])(const LateParams&, int64_t first, int64_t end);
    // Adds to the sums of class `place`, counted over all tasks.
    void (*add_rows[2])(const SumsParams&, int64_t place, const ClassEntry* entries, int64_t count);
};

// --- levels --------------------------------------------------------------------------------------

struct CpuKernels {
    const char* name;
    PaddleKernels paddle;
    AssignKernels assign;
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

}  // namespace paddle_ext
