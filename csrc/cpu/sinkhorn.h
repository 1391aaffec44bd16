// Sinkhorn's iteration on the CPU.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t sinkhorn_cpu_workspace(const SinkhornParams& params, int threads);
void sinkhorn_cpu(const SinkhornParams& params, int threads);

}  // namespace paddle_ext
