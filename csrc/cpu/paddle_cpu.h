// What the per-level kernels get from, and give to, the level-independent part in paddle.cpp.
#pragma once

#include "common/arena.h"
#include "common/params.h"

namespace paddle_ext {

// How the tasks of a call are solved; depends on the shape of a task alone, never on the batch.
struct CpuPlan {
    bool gram;            // products of the task's own features; else explicit prototypes
    bool threads_inside;  // one task is work enough for all threads
};

struct CpuCall {
    const PaddleParams* params;
    CpuPlan plan;
    int threads;            // to use inside a task
    void* support_summary;  // shared support: class sums, made once per call
};

// One set of functions per SIMD level; index 0 is float, 1 is double.
struct CpuKernels {
    const char* name;
    int64_t (*scratch_bytes[2])(const PaddleParams&, const CpuPlan&);
    int64_t (*summary_bytes[2])(const PaddleParams&);
    void (*summarise_support[2])(const CpuCall&);
    void (*solve_task[2])(const CpuCall&, int64_t task, void* scratch);
};

const CpuKernels& cpu_kernels_baseline();
#if PADDLE_EXT_X86
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();
#endif

// The element at `rank` of `values` in ascending order; reorders them.
float select_rank(float* values, int64_t count, int64_t rank);
double select_rank(double* values, int64_t count, int64_t rank);

// Threads for code that is compiled per SIMD level and must not instantiate library templates.
void parallel_ranges(int64_t count, int threads, void (*body)(void*, int64_t), void* context);

}  // namespace paddle_ext
