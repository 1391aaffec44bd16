#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t step_cpu_workspace(const StepParams& params, int threads);
void step_cpu(const StepParams& params, int threads);

}  // namespace paddle_ext
