// Few-shot tasks drawn from the rows of a feature bank.
#pragma once

#include "common/params.h"

namespace paddle_ext {

int64_t sample_tasks_workspace(const TaskParams& params, int threads);
void sample_tasks(const TaskParams& params, int threads);

}  // namespace paddle_ext
