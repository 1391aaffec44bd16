// Sinkhorn's iteration on CUDA. Everything runs on `stream`, without allocation or synchronisation.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t sinkhorn_cuda_workspace(const SinkhornParams& params, int device);
void sinkhorn_cuda(const SinkhornParams& params, int device, void* stream);

}  // namespace paddle_ext
