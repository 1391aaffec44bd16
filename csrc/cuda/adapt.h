#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t adapt_cuda_workspace(const AdaptParams& params, int device);
void adapt_cuda(const AdaptParams& params, int device, void* stream);

}  // namespace paddle_ext
