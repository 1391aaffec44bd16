#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t labelled_cpu_workspace(const LabelledParams& params, int threads);
void labelled_cpu(const LabelledParams& params, int threads);

int64_t coordinates_cpu_workspace(const CoordinatesParams& params, int threads);
void coordinates_cpu(const CoordinatesParams& params, int threads);

}  // namespace paddle_ext
