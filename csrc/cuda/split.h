#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t split_cuda_workspace(const SplitParams& params, int device);
void split_cuda(const SplitParams& params, int device, void* stream);

}  // namespace paddle_ext
