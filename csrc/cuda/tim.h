// TIM on CUDA. Everything runs on `stream`, without allocation or synchronisation.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t tim_cuda_workspace(const TimParams& params, int device);
void tim_cuda(const TimParams& params, int device, void* stream);

}  // namespace paddle_ext
