// Compiled with AVX-512 (F, DQ, BW, VL); called only where the processor has them.
#define PADDLE_EXT_LEVEL avx512
#define PADDLE_EXT_LEVEL_NAME "avx512"
#define PADDLE_EXT_ROW_TILE 12  // enough sums in flight to hide the latency of the two FMA units
#define PADDLE_EXT_VECTOR_BYTES 64

#include "cpu/level.inl"

namespace paddle_ext {
const CpuKernels& cpu_kernels_avx512() { return avx512::kKernels; }
}  // namespace paddle_ext
