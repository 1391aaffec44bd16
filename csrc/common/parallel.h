// A parallel loop on plain threads. OpenMP would bring a second runtime beside torch's own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace paddle_ext {

// Calls body(item, worker) for every item below count; items are handed out in order, one by one.
template <typename Body>
void parallel_for(int64_t count, int threads, const Body& body) {
    const int workers = static_cast<int>(std::min<int64_t>(threads, count));
    if (workers <= 1) {
        for (int64_t item = 0; item < count; ++item) body(item, 0);
        return;
    }
    std::atomic<int64_t> next{0};
    const auto work = [&](int worker) {
        for (int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            body(item, worker);
        }
    };
    std::vector<std::thread> team;
    team.reserve(static_cast<size_t>(workers - 1));
    try {
        for (int worker = 1; worker < workers; ++worker) team.emplace_back(work, worker);
    } catch (const std::system_error&) {
        // No more threads to be had: those that started, and this one, do the work.
    }
    work(0);
    for (auto& member : team) member.join();
}

}  // namespace paddle_ext
