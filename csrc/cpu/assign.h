// Rows of large tasks on the CPU; the parameters are in common/large.h.
#pragma once

#include "common/large.h"

namespace paddle_ext {

int64_t assign_cpu_workspace(const AssignParams& params, int threads);
void assign_cpu(const AssignParams& params, int threads);

int64_t count_cpu_workspace(const CountParams& params, int threads);
void count_cpu(const CountParams& params, int threads);

int64_t late_cpu_workspace(const LateParams& params, int threads);
void late_cpu(const LateParams& params, int threads);

}  // namespace paddle_ext
