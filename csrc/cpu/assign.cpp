// Rows of large tasks on the CPU.

#include <algorithm>

#include "common/arena.h"
#include "common/check.h"
#include "common/large.h"
#include "cpu/levels.h"
#include "cpu/sharing.h"

namespace paddle_ext {

namespace {

int64_t parts_of(int64_t N) { return (N + kRowsOfPart - 1) / kRowsOfPart; }

int workers_of(int64_t B, int64_t N, int64_t K, int threads) {
    const double work = 16.0 * double(B) * double(N) * double(K);
    return paddle_ext::workers_of(B * parts_of(N), work, threads);
}

// The memory of a call: the sums of all parts, then one row per worker.
struct Workspace {
    AssignSums* sums;  // [B, parts]
    char* rows;
    int64_t row_bytes, used;

    Workspace(void* base, int64_t B, int64_t N, int64_t K, int workers, int64_t row_bytes)
        : row_bytes(round_up(row_bytes)) {
        Arena arena(base);
        const int64_t parts = B * parts_of(N);
        sums = arena.take<AssignSums>(parts);
        double* const held = arena.take<double>(parts * K);
        rows = arena.take<char>(workers * this->row_bytes);
        used = arena.used();
        for (int64_t i = 0; base != nullptr && i < parts; ++i) sums[i] = {held + i * K, 0, {0, 0}};
    }

    static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// Calls work(task, first row, end, worker, sums) for all parts, then adds up their results.
template <typename Work, typename Add>
void over_parts(int64_t B, int64_t N, int workers, const Workspace& all, const Work& work,
                const Add& add) {
    const int64_t parts = parts_of(N);
    parallel_for(B * parts, workers, [&](int64_t item, int worker) {
        const int64_t first = item % parts * kRowsOfPart;
        work(item / parts, first, std::min(N, first + kRowsOfPart), worker, all.sums[item]);
    });
    for (int64_t item = 0; item < B * parts; ++item) add(item / parts, all.sums[item]);
}

}  // namespace

int64_t workspace_cpu(const AssignParams& p, int threads) {
    const int64_t row = cpu_kernels().assign.row_bytes[precision(p.dtype, "products")](p.K);
    return Workspace(nullptr, p.B, p.N, p.K, workers_of(p.B, p.N, p.K, threads), row).used;
}

void run_cpu(const AssignParams& p, int threads) {
    const int at = precision(p.dtype, "products");
    require(p.written == p.dtype && p.rest == nullptr,
            "probabilities must have the dtype of the products");
    const AssignKernels& level = cpu_kernels().assign;
    const int workers = workers_of(p.B, p.N, p.K, threads);
    const Workspace all(p.workspace, p.B, p.N, p.K, workers, level.row_bytes[at](p.K));
    require_workspace(p.workspace_bytes, all.used);
    over_parts(
        p.B, p.N, workers, all,
        [&](int64_t task, int64_t first, int64_t end, int worker, AssignSums& sums) {
            level.assign_rows[at](p, task, first, end, all.rows + worker * all.row_bytes, sums);
        },
        [&](int64_t task, const AssignSums& sums) {
            for (int64_t k = 0; p.held != nullptr && k < p.K; ++k)
                p.held[task * p.K + k] += sums.held[k];
            if (p.log_sums != nullptr) p.log_sums[task] += sums.log_sums;
            for (int i = 0; p.leads != nullptr && i < 2; ++i)
                p.leads[task * 2 + i] += sums.leads[i];
        });
}

void run_cpu(const LateParams& p, int threads) {
    const int at = precision(p.dtype, "products");
    const AssignKernels& level = cpu_kernels().assign;
    parallel_for(parts_of(p.N), workers_of(1, p.N, p.K, threads), [&](int64_t part, int) {
        const int64_t first = part * kRowsOfPart;
        level.late_rows[at](p, first, std::min(p.N, first + kRowsOfPart));
    });
}

int64_t workspace_cpu(const CountParams& p, int threads) {
    return Workspace(nullptr, p.B, p.N, p.K, workers_of(p.B, p.N, p.K, threads), 0).used;
}

void run_cpu(const CountParams& p, int threads) {
    const int at = precision(p.dtype, "likelihood");
    const AssignKernels& level = cpu_kernels().assign;
    const int workers = workers_of(p.B, p.N, p.K, threads);
    const Workspace all(p.workspace, p.B, p.N, p.K, workers, 0);
    require_workspace(p.workspace_bytes, all.used);
    over_parts(
        p.B, p.N, workers, all,
        [&](int64_t task, int64_t first, int64_t end, int, AssignSums& sums) {
            level.count_rows[at](p, task, first, end, sums);
        },
        [&](int64_t task, const AssignSums& sums) {
            for (int64_t k = 0; k < p.K; ++k) p.held[task * p.K + k] += sums.held[k];
            p.faint[task] += sums.log_sums;
        });
}

}  // namespace paddle_ext
