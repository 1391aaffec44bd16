// The end of an iteration of large tasks on the CPU.

#include <algorithm>
#include <cmath>

#include "common/large.h"
#include "common/prepare.h"
#include "common/proportions.h"

namespace paddle_ext {

namespace {

void end_iteration(const DualParams& p, int64_t task) {
    const double* const held = p.held + task * p.K;
    double* const counts = p.counts + task * p.K;
    double* const dual = p.dual + task * p.K;
    Proportions proportions(p.prior, p.total, double(p.K), p.epsilon);
    proportions.concentration = p.concentration[task];
    const auto measure = [&](int64_t k) {
        return p.measure == nullptr ? 1.0 : p.measure[task * p.K + k];
    };
    double moved = 0, slope = 0, curvature = 0;
    for (int64_t k = 0; k < p.K; ++k) {
        const double count = p.weight * held[k];
        moved = std::max(moved, std::abs(count - counts[k]));
        counts[k] = count;
        if (!proportions.dirichlet) continue;
        const PriorTerm term = class_term(count, proportions.concentration, measure(k));
        slope += term.slope;
        curvature += term.curvature;
    }
    if (proportions.dirichlet) proportions.learn(slope, curvature, p.least);
    double away = 0;
    for (int64_t k = 0; k < p.K; ++k) {
        p.before[task * p.K + k] = dual[k];
        dual[k] = proportions.dual(counts[k], measure(k));
        if (p.base != nullptr) set_bias(p, task * p.K + k);
        if (p.away != nullptr) away += p.away[task * p.K + k];
    }
    if (p.away != nullptr) moved = away / double(p.K) * p.unit[task];
    p.concentration[task] = proportions.concentration;
    p.criterion[task] = moved;
    p.iterations[task] += 1;
    p.running[task] = !(p.tol > 0 && moved <= p.tol);
}

}  // namespace

void run_cpu(const DualParams& p, int) {
    for (int64_t task = 0; task < p.B; ++task) {
        if (p.running[task] != 0) end_iteration(p, task);
    }
}

}  // namespace paddle_ext
