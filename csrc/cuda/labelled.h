#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t labelled_cuda_workspace(const LabelledParams& params, int device);
void labelled_cuda(const LabelledParams& params, int device, void* stream);

int64_t coordinates_cuda_workspace(const CoordinatesParams& params, int device);
void coordinates_cuda(const CoordinatesParams& params, int device, void* stream);

}  // namespace paddle_ext
