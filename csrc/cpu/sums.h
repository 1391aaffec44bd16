#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t sums_cpu_workspace(const SumsParams& params, int threads);
void sums_cpu(const SumsParams& params, int threads);

}  // namespace paddle_ext
