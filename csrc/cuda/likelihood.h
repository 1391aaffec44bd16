#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t likelihood_cuda_workspace(const LikelihoodParams& params, int device);
void likelihood_cuda(const LikelihoodParams& params, int device, void* stream);

}  // namespace paddle_ext
