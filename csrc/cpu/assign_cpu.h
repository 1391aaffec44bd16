// What the per-level kernels of `assign` and `count` give to the level-independent part in assign.cpp.
#pragma once

#include "common/arena.h"
#include "common/assign.h"
#include "common/params.h"

namespace paddle_ext {

constexpr int64_t kRowsOfPart = 64;  // whose sums are taken together, whatever the threads

// What a part of the rows of a task adds up to.
struct AssignSums {
    double* held;     // [K]
    double log_sums;  // or the faint rows of `count`
    double leads[2];
};

// A probability of a class, and the row it is of, counted over all tasks.
struct ClassEntry {
    int64_t row;
    double value;
};

// Index 0 is float, 1 is double. `row` is scratch memory for a row of the classes.
struct AssignKernels {
    int64_t (*row_bytes[2])(int64_t K);
    void (*assign_rows[2])(const AssignParams&, int64_t task, int64_t first, int64_t end, void* row,
                           AssignSums& sums);
    void (*count_rows[2])(const CountParams&, int64_t task, int64_t first, int64_t end,
                          AssignSums& sums);
    void (*late_rows[2])(const LateParams&, int64_t first, int64_t end);
    // To the sums of class `place`, counted over all tasks.
    void (*add_rows[2])(const SumsParams&, int64_t place, const ClassEntry* entries, int64_t count);
};

}  // namespace paddle_ext
