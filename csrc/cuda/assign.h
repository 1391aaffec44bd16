// Rows of large tasks on CUDA; the parameters are in common/large.h.
#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t assign_cuda_workspace(const AssignParams& params, int device);
void assign_cuda(const AssignParams& params, int device, void* stream);

int64_t count_cuda_workspace(const CountParams& params, int device);
void count_cuda(const CountParams& params, int device, void* stream);

int64_t late_cuda_workspace(const LateParams& params, int device);
void late_cuda(const LateParams& params, int device, void* stream);

}  // namespace paddle_ext
