// The kernels of `labelled` and `coordinates` at each SIMD level, as called by labelled.cpp.
#pragma once

#include "common/arena.h"
#include "common/labelled.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct LabelledKernels {
    int64_t (*scratch_bytes[2])(const LabelledParams&);
    void (*solve_task[2])(const LabelledParams&, int64_t task, void* scratch);
    void (*coordinates[2])(const CoordinatesParams&, int64_t first,
                           int64_t end);  // rows of all tasks
};

}  // namespace paddle_ext
