// Rows of large tasks on the CPU: in parts of kRowsOfPart, whose sums are added up in their order,
// whatever the threads.
#pragma once

#include <algorithm>

#include "common/workspace.h"
#include "cpu/levels.h"

namespace paddle_ext {

inline int64_t parts_of(int64_t N) { return (N + kRowsOfPart - 1) / kRowsOfPart; }

inline int row_workers(int64_t B, int64_t N, int64_t K, int threads) {
    const double work = 16.0 * double(B) * double(N) * double(K);
    return workers_of(B * parts_of(N), work, threads);
}

// The parts of the rows of a call, and its memory: the sums of all parts, then a row per worker.
struct Parts {
    Arena arena;
    int64_t B, N, K;
    int threads;
    int64_t row_bytes = 0;
    int workers = row_workers(B, N, K, threads);
    int64_t of_task = parts_of(N), count = B * of_task, row_step = (row_bytes + 63) / 64 * 64;
    AssignSums* sums = arena.take<AssignSums>(count);
    double* held = arena.take<double>(count * K);
    char* rows = arena.take<char>(workers * row_step);

    // Calls work(task, first row, end, row of the worker, sums) for all parts, then add(task, sums).
    template <typename Work, typename Add>
    void run(const Work& work, const Add& add) const {
        for (int64_t item = 0; item < count; ++item) sums[item] = {held + item * K, 0, {0, 0}};
        parallel_for(count, workers, [&](int64_t item, int worker) {
            const int64_t first = item % of_task * kRowsOfPart;
            work(item / of_task, first, std::min(N, first + kRowsOfPart), rows + worker * row_step,
                 sums[item]);
        });
        for (int64_t item = 0; item < count; ++item) add(item / of_task, sums[item]);
    }
};

}  // namespace paddle_ext
