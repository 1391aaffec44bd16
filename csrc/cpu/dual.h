#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t dual_cpu_workspace(const DualParams& params, int threads);
void dual_cpu(const DualParams& params, int threads);

}  // namespace paddle_ext
