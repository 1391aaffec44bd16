#include "cuda/sinkhorn.h"

#include "common/check.h"

namespace paddle_ext {

int64_t sinkhorn_cuda_workspace(const SinkhornParams&, int) { return 0; }

void sinkhorn_cuda(const SinkhornParams&, int, void*) { require(false, "not there yet"); }

}  // namespace paddle_ext
