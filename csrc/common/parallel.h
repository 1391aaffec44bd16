// A parallel loop on threads that are created on first use and kept. OpenMP would load a second
// runtime alongside torch's.
#pragma once

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

// Whether this thread is inside a call, so that a call starting here is nested.
bool inside_call();

// Number of threads that this process has created for parallel_run.
int64_t threads_made();

}  // namespace paddle_ext
