#include "cpu/labelled.h"

#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

Sharing make_sharing(const LabelledParams& p, int threads) {
    const double task = 6.0 * double(p.S + p.R) * double(p.D);
    return share_threads(p.B, threads, task, 0);
}

}  // namespace

int64_t labelled_cpu_workspace(const LabelledParams& p, int threads) {
    const int at = precision(p.dtype, "support");
    return scratch_of_workers(cpu_kernels().labelled, at, p, make_sharing(p, threads));
}

void labelled_cpu(const LabelledParams& p, int threads) {
    solve_tasks(cpu_kernels().labelled, precision(p.dtype, "support"), p, make_sharing(p, threads));
}

int64_t coordinates_cpu_workspace(const CoordinatesParams&, int) { return 0; }

void coordinates_cpu(const CoordinatesParams& p, int threads) {
    const auto coordinates = cpu_kernels().labelled.coordinates[precision(p.dtype, "rows")];
    constexpr int64_t kRows = 64;  // handed to a thread at once
    const int64_t rows = p.B * p.N, parts = (rows + kRows - 1) / kRows;
    const Sharing sharing = share_threads(parts, threads, 4.0 * double(kRows * p.D), 0);
    share_tasks(parts, sharing, [&](int64_t part, int, int) {
        coordinates(p, part * kRows, std::min(rows, (part + 1) * kRows));
    });
}

}  // namespace paddle_ext
