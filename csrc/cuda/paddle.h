// The solver on CUDA. Everything runs on `stream`, without allocation or synchronisation.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t paddle_cuda_workspace(const PaddleParams& params, int device, bool prototypes);
void paddle_cuda(const PaddleParams& params, int device, void* stream);

}  // namespace paddle_ext
