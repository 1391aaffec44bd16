// What the per-level kernels of `calibrate` give to the level-independent part in calibrate.cpp.
#pragma once

#include "common/calibrate.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct CalibrateKernels {
    void (*solve_task[2])(const CalibrateParams&, int64_t task);
};

}  // namespace paddle_ext
