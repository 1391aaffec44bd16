#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t adapt_cpu_workspace(const AdaptParams& params, int threads);
void adapt_cpu(const AdaptParams& params, int threads);

}  // namespace paddle_ext
