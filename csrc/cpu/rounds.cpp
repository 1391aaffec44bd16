// The rounds of a batch on the CPU: threads share the rows of all tasks, in parts.

#include "common/rounds.h"

#include "cpu/parts.h"

namespace paddle_ext {

namespace {

// Calls rows(p, task, first row, end) for all parts of the rows.
template <typename Params>
void in_parts(const Params& p, int threads,
              void (*rows)(const Params&, int64_t task, int64_t first, int64_t end)) {
    const int64_t of_task = parts_of(p.N);
    parallel_for(p.B * of_task, row_workers(p.B, p.N, p.K, threads), [&](int64_t part, int) {
        const int64_t first = part % of_task * kRowsOfPart;
        rows(p, part / of_task, first, std::min(p.N, first + kRowsOfPart));
    });
}

template <typename Real>
void find_density(const DensityParams& p) {
    for (int64_t at = 0; at < p.B * p.K; ++at) {
        const double f = double(reals<Real>(p.sharpness)[at / p.K]);
        const double variance = double(reals<Real>(p.variance)[at / p.K]);
        const DensityTerms found = density_terms(
            f / 2, variance, double(reals<Real>(p.squares)[at]), double(reals<Real>(p.mass)[at]),
            double(reals<Real>(p.labelled_mass)[at]), double(reals<Real>(p.bias)[at]));
        reals<Real>(p.steepness)[at] = Real(found.steepness);
        reals<Real>(p.constant)[at] = Real(found.constant);
    }
}

}  // namespace

void run_cpu(const DensityParams& p, int) {
    precision(p.dtype, "squares") == 0 ? find_density<float>(p) : find_density<double>(p);
}

int64_t workspace_cpu(const WeighParams& p, int threads) {
    return Parts{Arena(), p.B, p.N, p.K, threads}.arena.used();
}

void run_cpu(const WeighParams& p, int threads) {
    require(p.written == p.dtype && p.rest == nullptr,
            "weights must have the dtype of the probabilities");
    const auto weigh_rows = cpu_kernels().rounds.weigh_rows[precision(p.dtype, "probabilities")];
    const Parts parts{Arena(p.workspace), p.B, p.N, p.K, threads};
    require_workspace(p.workspace_bytes, parts.arena.used());
    parts.run([&](int64_t task, int64_t first, int64_t end, void*,
                  AssignSums& sums) { weigh_rows(p, task, first, end, sums); },
              [&](int64_t task, const AssignSums& sums) {
                  for (int64_t k = 0; k < p.K; ++k) p.held[task * p.K + k] += sums.held[k];
              });
}

void run_cpu(const AbsorbParams& p, int threads) {
    in_parts(p, threads, cpu_kernels().rounds.absorb_rows[precision(p.dtype, "products")]);
}

void run_cpu(const ClaimParams& p, int threads) {
    in_parts(p, threads, cpu_kernels().rounds.claim_rows[precision(p.dtype, "probabilities")]);
}

}  // namespace paddle_ext
