#include "cpu/calibrate.h"

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

int64_t calibrate_cpu_workspace(const CalibrateParams&, int) { return 0; }

void calibrate_cpu(const CalibrateParams& p, int threads) {
    const auto solve_task = cpu_kernels().calibrate.solve_task[precision(p.dtype, "distances")];
    constexpr double kSteps = 8;  // in practice, of some 20 multiplications for a distance
    const double task = 20.0 * kSteps * double(p.R) * double(p.K);
    share_tasks(p.B, share_threads(p.B, threads, task, 0),
                [&](int64_t at, int, int) { solve_task(p, at); });
}

}  // namespace paddle_ext
