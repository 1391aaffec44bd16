// `coordinates` on the CPU: threads share rows, not tasks.

#include <algorithm>

#include "common/check.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

int64_t workspace_cpu(const CoordinatesParams&, int) { return 0; }

void run_cpu(const CoordinatesParams& p, int threads) {
    require(p.centre != nullptr && !p.split, "rows on the CPU need a centre and are not split");
    const auto coordinates = cpu_kernels().coordinates[precision(p.dtype, "rows")];
    constexpr int64_t kRows = 64;  // handed to a thread at once
    const int64_t rows = p.B * p.N, parts = (rows + kRows - 1) / kRows;
    const Sharing sharing = share_threads(parts, threads, 4.0 * double(kRows * p.D), 0);
    share_tasks(parts, sharing, [&](int64_t part, int, int) {
        coordinates(p, part * kRows, std::min(rows, (part + 1) * kRows));
    });
}

}  // namespace paddle_ext
