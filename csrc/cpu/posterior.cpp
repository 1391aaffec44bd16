#include "cpu/posterior.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const PosteriorParams& p, int threads) {
    const double Q = double(p.Q), K = double(p.K), D = double(p.D);
    const double inner = has_gram(Q, D, K) ? Q * Q * (D + K) : 2 * Q * K * D;
    const double products = Q * K * D + inner;
    // The proportions and the step take about 100 multiplications per query and class.
    return share_threads(p.B, threads, products + 100.0 * Q * K, products);
}

}  // namespace

int64_t posterior_cpu_workspace(const PosteriorParams& p, int threads) {
    const int at = precision(p.dtype, "query");
    return scratch_of_workers(cpu_kernels().posterior, at, p, make_sharing(p, threads));
}

void posterior_cpu(const PosteriorParams& p, int threads) {
    const int at = precision(p.dtype, "query");
    solve_tasks_inside(cpu_kernels().posterior, at, p, make_sharing(p, threads));
}

}  // namespace paddle_ext
