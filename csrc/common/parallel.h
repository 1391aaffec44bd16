// A parallel loop on threads that are created on first use and kept. OpenMP would load a second
// runtime alongside torch's.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace paddle_ext {

// Calls body(context, item, worker) for every item below count, on this thread and on at most
// threads - 1 others; items are handed out in order, one at a time. `worker` is below `threads`,
// and concurrent calls have different ones. The body must not throw. Any thread may call this at
// any time: the caller always works too, and uses whatever threads are free. A cancelled loop
// (`interrupted`) hands out no more items.
void parallel_run(int64_t count, int threads, void (*body)(void*, int64_t, int), void* context);

template <typename Body>
void parallel_for(int64_t count, int threads, const Body& body) {
    const auto call = [](void* context, int64_t item, int worker) {
        (*static_cast<const Body*>(context))(item, worker);
    };
    parallel_run(count, threads, call, const_cast<Body*>(&body));
}

// During its lifetime, the work of this thread and its helpers belongs to one call that can be
// cancelled. `asked` returns whether to cancel; it is called about ten times a second, on this
// thread only, and may do anything, including another call.
class Interruptible {
  public:
    Interruptible(bool (*asked)(void*), void* context);
    ~Interruptible();
    Interruptible(const Interruptible&) = delete;
    Interruptible& operator=(const Interruptible&) = delete;

  private:
    friend bool interrupted();
    bool ask();

    bool (*const asked_)(void*);
    void* const context_;
    Interruptible* const outer_;
    const std::thread::id owner_;
    std::chrono::steady_clock::time_point next_;
    std::atomic<bool> stopped_{false};
};

// Whether the call that this thread works for is cancelled: its results are then invalid, and every
// loop ends as soon as it can. Takes about 30 ns; loops that may run long check it every round.
bool interrupted();

// Number of threads that this process has created for parallel_run.
int64_t threads_made();

// --- how the tasks of a call share its threads ---------------------------------------------------

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
