// The level that every machine of the architecture has: NEON on aarch64, SSE2 on x86-64.
#define PADDLE_EXT_LEVEL baseline
#if defined(__aarch64__)
#define PADDLE_EXT_LEVEL_NAME "neon"
#define PADDLE_EXT_ROW_TILE 5  // 20 of the 32 registers hold sums; 6 rows make the compiler spill
#elif defined(__x86_64__)
#define PADDLE_EXT_LEVEL_NAME "sse2"
#define PADDLE_EXT_ROW_TILE 2  // 8 of 16
#else
#define PADDLE_EXT_LEVEL_NAME "generic"
#define PADDLE_EXT_ROW_TILE 2
#endif
#define PADDLE_EXT_VECTOR_BYTES 16

#include "cpu/level.inl"

namespace paddle_ext {
const CpuKernels& cpu_kernels_baseline() { return baseline::kKernels; }
}  // namespace paddle_ext
