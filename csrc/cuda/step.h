#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t step_cuda_workspace(const StepParams& params, int device);
void step_cuda(const StepParams& params, int device, void* stream);

}  // namespace paddle_ext
