#include "cpu/sinkhorn.h"

#include "common/check.h"
#include "cpu/levels.h"

namespace paddle_ext {

int64_t sinkhorn_cpu_workspace(const SinkhornParams&, int) { return 0; }

void sinkhorn_cpu(const SinkhornParams&, int) { require(false, "not there yet"); }

}  // namespace paddle_ext
