#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t dual_cuda_workspace(const DualParams& params, int device);
void dual_cuda(const DualParams& params, int device, void* stream);

}  // namespace paddle_ext
