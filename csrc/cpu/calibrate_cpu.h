// The kernels of `calibrate` at each SIMD level, as called by calibrate.cpp.
#pragma once

#include "common/arena.h"
#include "common/calibrate.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct CalibrateKernels {
    int64_t (*scratch_bytes[2])(const CalibrateParams&);
    void (*solve_task[2])(const CalibrateParams&, int64_t task, void* scratch);
};

}  // namespace paddle_ext
