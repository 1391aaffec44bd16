// How the tasks of a call share its threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/parallel.h"

namespace paddle_ext {

// Work is counted in multiplications; 1e6 take about 100 us. A sleeping thread starts about 10 us
// after it is woken, so it pays from about this much work on, ...
constexpr double kWorkOfThread = 5e5;
// ... and an iteration, which wakes all threads twice, from this much.
constexpr double kWorkOfIteration = 2e6;

// The threads that pay for so much work, divided into this many items.
inline int workers_of(int64_t items, double work, int threads) {
    const double most = std::min(double(threads), double(items));
    return std::max(1, int(std::min(most, work / kWorkOfThread)));
}

struct Sharing {
    int64_t singles;  // the first tasks: each on one thread, ...
    int workers;      // ... this many at a time
    int inside;       // threads of each of the other tasks, one task after the other
};

// `iteration` is the work of one iteration, 0 if a task cannot use several threads. The result of a
// task must not depend on how it is solved.
inline Sharing share_threads(int64_t B, int threads, double task, double iteration) {
    threads = std::max(1, threads);
    // Whole rounds of one task per thread; up to three quarters of a round of leftovers may use
    // threads inside tasks.
    int64_t rest = iteration > kWorkOfIteration ? B % threads : 0;
    if (4 * rest > 3 * int64_t(threads)) rest = 0;
    const int64_t singles = B - rest;
    return {singles, workers_of(singles, double(singles) * task, threads), threads};
}

// Calls solve(task, worker, threads) for every task.
template <typename Solve>
void share_tasks(int64_t B, const Sharing& sharing, const Solve& solve) {
    parallel_for(sharing.singles, sharing.workers,
                 [&](int64_t task, int worker) { solve(task, worker, 1); });
    for (int64_t task = sharing.singles; task < B && !interrupted(); ++task) {
        solve(task, 0, sharing.inside);
    }
}

}  // namespace paddle_ext
