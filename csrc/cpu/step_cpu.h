// The kernels of `step` at each SIMD level, as called by step.cpp.
#pragma once

#include "common/arena.h"
#include "common/params.h"
#include "common/step.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct StepKernels {
    int64_t (*scratch_bytes[2])(const StepParams&);
    void (*solve_task[2])(const StepParams&, int64_t task, void* scratch);
};

}  // namespace paddle_ext
