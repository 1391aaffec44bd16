// The kernels of Sinkhorn's iteration at each SIMD level, as called by sinkhorn.cpp.
#pragma once

#include "common/arena.h"
#include "common/params.h"
#include "common/sinkhorn.h"

namespace paddle_ext {

// Index 0 is float, 1 is double.
struct SinkhornKernels {
    int64_t (*scratch_bytes[2])(const SinkhornParams&);
    void (*solve_task[2])(const SinkhornParams&, int64_t task, void* scratch);
};

}  // namespace paddle_ext
