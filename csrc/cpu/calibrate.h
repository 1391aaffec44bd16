#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t calibrate_cpu_workspace(const CalibrateParams& params, int threads);
void calibrate_cpu(const CalibrateParams& params, int threads);

}  // namespace paddle_ext
