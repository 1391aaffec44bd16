// All CPU code for one SIMD level. A per-level file defines PADDLE_EXT_LEVEL (a namespace),
// PADDLE_EXT_LEVEL_NAME, PADDLE_EXT_VECTOR_BYTES and PADDLE_EXT_ROW_TILE, and includes this.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/adapt.h"
#include "common/workspace.h"
#include "common/adaptive.h"
#include "common/math.h"
#include "common/parallel.h"
#include "common/large.h"
#include "common/sinkhorn.h"
#include "common/tim.h"
#include "cpu/levels.h"

namespace paddle_ext {
namespace PADDLE_EXT_LEVEL {

#include "cpu/simd.inl"

static inline int64_t round_up(int64_t value, int64_t step) {
    return (value + step - 1) / step * step;
}

// The bytes that a struct takes from its arena.
template <typename Memory, typename Params>
static int64_t bytes_of(const Params& p) {
    Arena arena;
    static_cast<void>(Memory{arena, p});
    return arena.used();
}

// The kernels of tasks that take their memory as Memory<float> or Memory<double>.
template <template <typename> class Memory, typename Params, typename Solve>
static constexpr TaskKernels<Params> task_kernels(const char* array, Work (*work)(const Params&),
                                                  Solve* with_float, Solve* with_double) {
    return {array,
            work,
            {bytes_of<Memory<float>, Params>, bytes_of<Memory<double>, Params>},
            {with_float, with_double}};
}

#include "cpu/matrix.inl"
#include "cpu/paddle_task.inl"
#include "cpu/sinkhorn_task.inl"
#include "cpu/tim_task.inl"
#include "cpu/adapt_task.inl"
#include "cpu/labelled_task.inl"
#include "cpu/likelihood_task.inl"
#include "cpu/posterior_task.inl"
#include "cpu/assign_task.inl"
#include "cpu/groups_task.inl"

constexpr CpuKernels kKernels = {
    PADDLE_EXT_LEVEL_NAME,
    kAssignKernels,
    {coordinates_rows<float>, coordinates_rows<double>},
    {kPaddleKernels, kSinkhornKernels, kTimKernels, kAdaptKernels, kLabelledKernels,
     kCalibrateKernels, kLikelihoodKernels, kPosteriorKernels, kGroupsKernels},
};

}  // namespace PADDLE_EXT_LEVEL
}  // namespace paddle_ext
