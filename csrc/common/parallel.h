// A parallel loop on threads that are made when first asked for, and kept. OpenMP would bring a second
// runtime beside torch's own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace paddle_ext {

// Calls body(context, item, worker) for every item below count, on this thread and on at most
// threads - 1 others; items are handed out in order, one by one. `worker` is below `threads`, and no
// two calls at a time have the same. The body does not throw. Any thread may call this at any time:
// it always works itself, and gets what threads are free. A loop that is given up (`interrupted`)
// hands out no more items.
void parallel_run(int64_t count, int threads, void (*body)(void*, int64_t, int), void* context);

template <typename Body>
void parallel_for(int64_t count, int threads, const Body& body) {
    const auto call = [](void* context, int64_t item, int worker) {
        (*static_cast<const Body*>(context))(item, worker);
    };
    parallel_run(count, threads, call, const_cast<Body*>(&body));
}

// For as long as it lives, what this thread and its helpers do is a call that can be given up.
// `asked` says whether it is to be; it is called about ten times a second, on this thread alone, and
// may do anything, such as another call.
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

// Whether the call that this thread works for is given up: then its results are worth nothing, and
// every loop ends as soon as it can. Takes some 30 ns; loops that may last ask it in every round.
bool interrupted();

// Whether this thread is in the midst of a call, so that one that starts now is another one's guest.
bool inside_call();

// How many threads this process has made for parallel_run.
int64_t threads_made();

}  // namespace paddle_ext
