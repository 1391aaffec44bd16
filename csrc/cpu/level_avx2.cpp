// Compiled with AVX2 and FMA; called only where the processor has them.
#define PADDLE_EXT_LEVEL avx2
#define PADDLE_EXT_LEVEL_NAME "avx2"
#define PADDLE_EXT_ROW_TILE 6  // 12 of the 16 registers hold sums
#define PADDLE_EXT_VECTOR_BYTES 32

#include "cpu/level.inl"

namespace paddle_ext {
const CpuKernels& cpu_kernels_avx2() { return avx2::kKernels; }
}  // namespace paddle_ext
