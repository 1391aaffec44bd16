// The kernels of TIM at each SIMD level, as called by tim.cpp.
#pragma once

#include "common/arena.h"
#include "common/params.h"
#include "common/tim.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct TimKernels {
    int64_t (*scratch_bytes[2])(const TimParams&);
    void (*solve_task[2])(const TimParams&, int threads, int64_t task, void* scratch);
};

}  // namespace paddle_ext
