// The threads behind parallel_run. A loop is a job in a queue; idle threads join the first. A job
// never waits for a helper to join: its caller works, closes the job when nothing is left to hand
// out, and then waits only for helpers still busy with an item. So loops of several callers, or
// nested ones, cannot block each other.
#if !defined(_WIN32)
#include <pthread.h>
#include <signal.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "common/parallel.h"

namespace paddle_ext {

namespace {

// How often a thread polls for work, or for its end, before it sleeps. An iteration has two loops
// with little between them, and a sleeping thread would wake too late for the second. Each poll
// yields the core to others: about 20 us in all if none needs it.
constexpr int kPatience = 64;

// The interval at which a call checks whether it is cancelled.
constexpr std::chrono::milliseconds kAskAfter{100};

thread_local Interruptible* current_call = nullptr;  // the call that this thread works for

struct Job {
    void (*body)(void*, int64_t, int);
    void* context;
    int64_t count;
    int wanted;           // helpers wanted
    Interruptible* call;  // the call it belongs to
    int helpers = 0;      // helpers that have joined
    Job* next = nullptr;  // in the queue
    std::atomic<int64_t> item{0};
    std::atomic<int> busy{0};  // helpers at work

    void work(int worker) {
        for (int64_t mine; (mine = item.fetch_add(1, std::memory_order_relaxed)) < count;) {
            if (interrupted()) return;
            body(context, mine, worker);
        }
    }
};

#if defined(_WIN32)  // has neither signals of this kind nor forks
struct SignalsBlocked {
    SignalsBlocked() {}
};
void pthread_atfork(void (*)(), void (*)(), void (*)()) {}
#else
// Helpers block all signals: Python's handlers run on its own threads.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};
#endif

class Pool {
  public:
    void run(Job& job) {
        open(job);
        job.work(0);
        close(job);
    }

    int64_t size() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return size_;
    }

  private:
    void open(Job& job) {
        int woken = 0;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            grow(job.wanted);
            Job** end = &first_;
            while (*end != nullptr) end = &(*end)->next;
            *end = &job;
            waiting_.fetch_add(1, std::memory_order_relaxed);
            woken = std::min(job.wanted, asleep_);
        }
        for (int i = 0; i < woken; ++i) wake_.notify_one();
    }

    void close(Job& job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (job.helpers < job.wanted) leave_queue(job);
        }
        for (int i = 0; i < kPatience; ++i) {
            if (job.busy.load(std::memory_order_acquire) == 0) return;
            std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        const auto all_done = [&] { return job.busy.load(std::memory_order_acquire) == 0; };
        while (!done_.wait_for(lock, kAskAfter, all_done)) {
            lock.unlock();
            interrupted();  // the helpers cannot check
            lock.lock();
        }
    }

    void leave_queue(Job& job) {
        Job** at = &first_;
        while (*at != &job) at = &(*at)->next;
        *at = job.next;
        waiting_.fetch_sub(1, std::memory_order_relaxed);
    }

    // If the system creates no more threads, the existing ones do the work.
    void grow(int wanted) {
        if (size_ >= wanted) return;
        const SignalsBlocked blocked;
        try {
            for (; size_ < wanted; ++size_) std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {
        }
    }

    [[noreturn]] void help() {
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            Job& job = wait_for_job(lock);
            const int worker = ++job.helpers;
            if (worker == job.wanted) leave_queue(job);
            job.busy.fetch_add(1, std::memory_order_relaxed);
            lock.unlock();
            current_call = job.call;
            job.work(worker);
            current_call = nullptr;
            lock.lock();
            // The job may be destroyed from here on.
            if (job.busy.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
        }
    }

    Job& wait_for_job(std::unique_lock<std::mutex>& lock) {
        if (first_ == nullptr) {
            lock.unlock();
            for (int i = 0; i < kPatience; ++i) {
                if (waiting_.load(std::memory_order_relaxed) > 0) break;
                std::this_thread::yield();
            }
            lock.lock();
        }
        ++asleep_;
        wake_.wait(lock, [&] { return first_ != nullptr; });
        --asleep_;
        return *first_;
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    Job* first_ = nullptr;         // jobs that want more helpers
    std::atomic<int> waiting_{0};  // their number, readable without the lock
    int asleep_ = 0;
    int size_ = 0;
};

// Never destroyed: threads that sleep in it may outlive every static object.
std::atomic<Pool*> current{nullptr};
std::atomic<bool> fork_is_handled{false};

// A forked child has none of the threads, and one of them may have held a lock: start over.
void forget_pool() { current.store(nullptr); }

Pool& pool() {
    if (Pool* there = current.load(std::memory_order_acquire)) return *there;
    if (!fork_is_handled.exchange(true)) pthread_atfork(nullptr, nullptr, forget_pool);
    Pool* const fresh = new Pool;
    Pool* there = nullptr;
    if (current.compare_exchange_strong(there, fresh)) return *fresh;
    delete fresh;
    return *there;
}

}  // namespace

void parallel_run(int64_t count, int threads, void (*body)(void*, int64_t, int), void* context) {
    const int workers = static_cast<int>(std::min<int64_t>(threads, count));
    if (workers <= 1) {
        for (int64_t item = 0; item < count && !interrupted(); ++item) body(context, item, 0);
        return;
    }
    Job job{body, context, count, workers - 1, current_call};
    pool().run(job);
}

Interruptible::Interruptible(bool (*asked)(void*), void* context)
    : asked_(asked), context_(context), outer_(current_call), owner_(std::this_thread::get_id()),
      next_(std::chrono::steady_clock::now() + kAskAfter) {
    current_call = this;
}

Interruptible::~Interruptible() { current_call = outer_; }

bool Interruptible::ask() {
    if (stopped_.load(std::memory_order_relaxed)) return true;
    if (std::this_thread::get_id() != owner_) return false;
    if (std::chrono::steady_clock::now() < next_) return false;
    const bool stop = asked_(context_);
    next_ = std::chrono::steady_clock::now() + kAskAfter;
    if (stop) stopped_.store(true, std::memory_order_relaxed);
    return stop;
}

bool interrupted() { return current_call != nullptr && current_call->ask(); }

int64_t threads_made() {
    Pool* const there = current.load(std::memory_order_acquire);
    return there == nullptr ? 0 : there->size();
}

}  // namespace paddle_ext
