#include "cpu/calibrate.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const CalibrateParams& p, int threads) {
    constexpr double kSteps = 8;  // typical; each takes about 20 multiplications per distance
    const double task = 20.0 * kSteps * double(p.R) * double(p.K);
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t calibrate_cpu_workspace(const CalibrateParams& p, int threads) {
    const int at = precision(p.dtype, "distances");
    return scratch_of_workers(cpu_kernels().calibrate, at, p, make_sharing(p, threads));
}

void calibrate_cpu(const CalibrateParams& p, int threads) {
    solve_tasks(cpu_kernels().calibrate, precision(p.dtype, "distances"), p,
                make_sharing(p, threads));
}

}  // namespace paddle_ext
