// The kernels of `adapt` at each SIMD level, as called by adapt.cpp.
#pragma once

#include "common/adapt.h"
#include "common/arena.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct AdaptKernels {
    int64_t (*scratch_bytes[2])(const AdaptParams&);
    void (*solve_task[2])(const AdaptParams&, int64_t task, void* scratch);
};

}  // namespace paddle_ext
