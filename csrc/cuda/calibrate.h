#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t calibrate_cuda_workspace(const CalibrateParams& params, int device);
void calibrate_cuda(const CalibrateParams& params, int device, void* stream);

}  // namespace paddle_ext
