// The SIMD levels of the CPU code: one set of kernels each, the best usable one chosen at run time.
#pragma once

#include "cpu/adapt_cpu.h"
#include "cpu/assign_cpu.h"
#include "cpu/calibrate_cpu.h"
#include "cpu/labelled_cpu.h"
#include "cpu/likelihood_cpu.h"
#include "cpu/paddle_cpu.h"
#include "cpu/posterior_cpu.h"
#include "cpu/sinkhorn_cpu.h"
#include "cpu/step_cpu.h"
#include "cpu/tim_cpu.h"

namespace paddle_ext {

struct CpuKernels {
    const char* name;
    PaddleKernels paddle;
    SinkhornKernels sinkhorn;
    TimKernels tim;
    AdaptKernels adapt;
    LabelledKernels labelled;
    CalibrateKernels calibrate;
    StepKernels step;
    AssignKernels assign;
    LikelihoodKernels likelihood;
    PosteriorKernels posterior;
};

// The current level. Read it once per call: another thread may switch levels meanwhile.
const CpuKernels& cpu_kernels();

const CpuKernels& cpu_kernels_baseline();
#if PADDLE_EXT_X86
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();
#endif

// Index of a precision in the kernel tables: 0 is float, 1 is double. `what` names the array in
// errors.
int precision(DType dtype, const char* what);

}  // namespace paddle_ext
