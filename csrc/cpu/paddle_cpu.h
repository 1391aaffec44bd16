// The kernels of PADDLE at each SIMD level, as called by paddle.cpp.
#pragma once

#include "common/arena.h"
#include "common/params.h"

namespace paddle_ext {

struct PaddleCall {
    const PaddleParams* params;
    void* support_summary;  // shared support: class sums, computed once per call
};

// Index 0 is float, 1 is double.
struct PaddleKernels {
    int64_t (*scratch_bytes[2])(const PaddleParams&);
    int64_t (*summary_bytes[2])(const PaddleParams&);
    void (*summarise_support[2])(const PaddleCall&);
    void (*solve_task[2])(const PaddleCall&, int64_t task, void* scratch);
};

// The element of rank `rank` of `values` in ascending order; reorders them. NaN if any is NaN.
float select_rank(float* values, int64_t count, int64_t rank);
double select_rank(double* values, int64_t count, int64_t rank);

}  // namespace paddle_ext
