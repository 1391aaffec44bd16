// The kernels of `likelihood` at each SIMD level, as called by likelihood.cpp.
#pragma once

#include "common/arena.h"
#include "common/likelihood.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct LikelihoodKernels {
    int64_t (*scratch_bytes[2])(const LikelihoodParams&);
    void (*solve_task[2])(const LikelihoodParams&, int64_t task, void* scratch, int threads);
};

}  // namespace paddle_ext
