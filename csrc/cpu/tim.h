// TIM on the CPU.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t tim_cpu_workspace(const TimParams& params, int threads);
void tim_cpu(const TimParams& params, int threads);

}  // namespace paddle_ext
