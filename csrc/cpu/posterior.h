#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t posterior_cpu_workspace(const PosteriorParams& params, int threads);
void posterior_cpu(const PosteriorParams& params, int threads);

}  // namespace paddle_ext
