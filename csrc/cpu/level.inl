// All CPU code for one SIMD level. A per-level file defines PADDLE_EXT_LEVEL (a namespace),
// PADDLE_EXT_LEVEL_NAME, PADDLE_EXT_VECTOR_BYTES and PADDLE_EXT_ROW_TILE, and includes this.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "common/adapt.h"
#include "common/adaptive.h"
#include "common/groups.h"
#include "common/large.h"
#include "common/rounds.h"
#include "common/rows.h"
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
#include "cpu/products_task.inl"
#include "cpu/assign_task.inl"
#include "cpu/rounds_task.inl"
#include "cpu/groups_task.inl"
#include "cpu/sets_task.inl"

constexpr CpuKernels kKernels = {
    PADDLE_EXT_LEVEL_NAME,
    kAssignKernels,
    kRoundKernels,
    {coordinates_rows<float>, coordinates_rows<double>},
    {kPaddleKernels,
     task_kernels<SinkhornTask>("cost", sinkhorn_work, sinkhorn_task<float>, sinkhorn_task<double>),
     task_kernels<TimMemory>("features", tim_work, tim_task<float>, tim_task<double>),
     task_kernels<AdaptTask>("logits", adapt_work, adapt_task<float>, adapt_task<double>),
     task_kernels<CalibrateScratch>("distances", calibrate_work, calibrate_task<float>,
                                    calibrate_task<double>),
     task_kernels<LikelihoodScratch>("support", likelihood_work, likelihood_task<float>,
                                     likelihood_task<double>),
     task_kernels<ProductsScratch>("query", products_work, products_task<float>,
                                   products_task<double>),
     task_kernels<GatherScratch>("gram", gather_work, gather_task<float>, gather_task<double>),
     task_kernels<PairsTask>("logits", pairs_work, pairs_task<float>, pairs_task<double>),
     task_kernels<GroupTask>("logits", groups_work, group_task<float>, group_task<double>),
     task_kernels<MixtureTask>("evidence", mixture_work, mixture_task, mixture_task),
     task_kernels<SetsTask>("logits", sets_work, sets_task<float>, sets_task<double>)},
};

}  // namespace PADDLE_EXT_LEVEL
}  // namespace paddle_ext
