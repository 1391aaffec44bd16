#include "cpu/likelihood.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const LikelihoodParams& p, int threads) {
    const double K = double(p.K), D = double(p.D), R = double(p.R), products = R * K * D;
    // The calibration takes about 8 steps of 20 multiplications per distance.
    return share_threads(p.B, threads, products + 6.0 * double(p.S) * D + 160.0 * R * K, products);
}

}  // namespace

int64_t likelihood_cpu_workspace(const LikelihoodParams& p, int threads) {
    const int at = precision(p.dtype, "support");
    return scratch_of_workers(cpu_kernels().likelihood, at, p, make_sharing(p, threads));
}

void likelihood_cpu(const LikelihoodParams& p, int threads) {
    const int at = precision(p.dtype, "support");
    solve_tasks_inside(cpu_kernels().likelihood, at, p, make_sharing(p, threads));
}

}  // namespace paddle_ext
