#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t posterior_cuda_workspace(const PosteriorParams& params, int device);
void posterior_cuda(const PosteriorParams& params, int device, void* stream);

}  // namespace paddle_ext
