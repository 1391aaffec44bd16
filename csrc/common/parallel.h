// A parallel loop on threads that are made when first asked for, and kept. OpenMP would bring a second
// runtime beside torch's own.
#pragma once

#include <cstdint>

namespace paddle_ext {

// Calls body(context, item, worker) for every item below count, on this thread and on at most
// threads - 1 others; items are handed out in order, one by one. `worker` is below `threads`, and no
// two calls at a time have the same. The body does not throw. Any thread may call this at any time:
// it always works itself, and gets what threads are free.
void parallel_run(int64_t count, int threads, void (*body)(void*, int64_t, int), void* context);

template <typename Body>
void parallel_for(int64_t count, int threads, const Body& body) {
    const auto call = [](void* context, int64_t item, int worker) {
        (*static_cast<const Body*>(context))(item, worker);
    };
    parallel_run(count, threads, call, const_cast<Body*>(&body));
}

// How many threads this process has made for parallel_run.
int64_t threads_made();

}  // namespace paddle_ext
