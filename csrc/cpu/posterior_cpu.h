// The kernels of `posterior` at each SIMD level, as called by posterior.cpp.
#pragma once

#include "common/arena.h"
#include "common/likelihood.h"
#include "common/params.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct PosteriorKernels {
    int64_t (*scratch_bytes[2])(const PosteriorParams&);
    void (*solve_task[2])(const PosteriorParams&, int64_t task, void* scratch, int threads);
};

}  // namespace paddle_ext
