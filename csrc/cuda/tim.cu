#include "cuda/tim.h"

#include "common/check.h"

namespace paddle_ext {

int64_t tim_cuda_workspace(const TimParams&, int) { return 0; }

void tim_cuda(const TimParams&, int, void*) { require(false, "not there yet"); }

}  // namespace paddle_ext
