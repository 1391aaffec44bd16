// Prototypes of large tasks on the CPU, where rows are multiplied in their coordinates.

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/math.h"
#include "cpu/prepare.h"
#include "cpu/sharing.h"
#include "cpu/sum_of.h"

namespace paddle_ext {

namespace {

double square(double x) { return x * x; }

// Number `at` of all classes of all tasks.
template <typename Real>
void move_class(const MoveParams& p, int64_t at) {
    const int64_t task = at / p.K;
    Real* const w = static_cast<Real*>(p.prototypes) + at * p.D;
    const bool moves = p.sums != nullptr && p.running[task] != 0;
    if (moves) {
        const Real* const start = static_cast<const Real*>(p.start) + at * p.D;
        const Real* const sums = static_cast<const Real*>(p.sums) + at * p.D;
        Real* const before = static_cast<Real*>(p.before) + at * p.D;
        const Real shots = Real(p.shots[at]), mass = Real(safe_mass(p.shots[at] + p.held[at]));
        std::copy_n(w, p.D, before);
        for (int64_t d = 0; d < p.D; ++d) w[d] = (start[d] * shots + sums[d]) / mass;
        p.away[at] = std::sqrt(sum_of(p.D, [&](int64_t d) { return square(w[d] - before[d]); }));
    }
    const double squares = sum_of(p.D, [&](int64_t d) { return square(w[d]); });
    p.base[at] = -p.slope[task] * (squares / 2);
}

}  // namespace

int64_t move_cpu_workspace(const MoveParams&, int) { return 0; }

void move_cpu(const MoveParams& p, int threads) {
    require(p.dtype == DType::kFloat32 || p.dtype == DType::kFloat64,
            "prototypes must be float32 or float64");
    require(
        p.pieces == 0 && p.parts == 1 && p.width == p.D && p.rest == nullptr && p.scale == nullptr,
        "halves are for CUDA only");
    const double work = 4.0 * double(p.B) * double(p.K) * double(p.D);
    const double most = std::min<double>(threads, work / kWorkOfThread);
    parallel_for(p.B * p.K, std::max(1, int(most)), [&](int64_t at, int) {
        p.dtype == DType::kFloat32 ? move_class<float>(p, at) : move_class<double>(p, at);
    });
}

}  // namespace paddle_ext
