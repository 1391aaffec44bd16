// PADDLE on the CPU.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t paddle_cpu_workspace(const PaddleParams& params, int threads);
void paddle_cpu(const PaddleParams& params, int threads);

}  // namespace paddle_ext
