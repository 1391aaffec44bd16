// The kernels of `assign` and `count` at each SIMD level, as called by assign.cpp.
#pragma once

#include "common/arena.h"
#include "common/assign.h"
#include "common/large.h"

namespace paddle_ext {

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

// Index 0 is float, 1 is double. `row` is scratch memory for one row of classes.
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

}  // namespace paddle_ext
