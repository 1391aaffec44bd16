#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t likelihood_cpu_workspace(const LikelihoodParams& params, int threads);
void likelihood_cpu(const LikelihoodParams& params, int threads);

}  // namespace paddle_ext
