// For a call that may keep the device busy for long: the host waits for it, checks for signals now
// and then, and makes the kernels stop if the call is cancelled. Other calls do not wait.
#pragma once

#include <chrono>
#include <thread>

#include "common/device.cuh"
#include "common/parallel.h"

namespace paddle_ext {

// A call that may take more seconds than this is watched.
constexpr double kLongCall = 0.5;

class Watch {
  public:
    // `seconds` is a rough upper bound on the call's time. A captured call is not running yet.
    Watch(cudaStream_t stream, double seconds) : stream_(stream) {
        if (!(seconds > kLongCall)) return;
        cudaStreamCaptureStatus capturing;
        check_cuda(cudaStreamIsCapturing(stream, &capturing), "cudaStreamIsCapturing");
        if (capturing != cudaStreamCaptureStatusNone) return;
        check_cuda(cudaHostAlloc(&stop_, sizeof(int), cudaHostAllocMapped), "cudaHostAlloc");
        *stop_ = 0;
        check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    }

    // Nothing that reads the flag is running at this point, unless an error is pending.
    ~Watch() {
        if (stop_ == nullptr) return;
        cudaStreamSynchronize(stream_);
        cudaEventDestroy(event_);
        cudaFreeHost(const_cast<int*>(stop_));
    }

    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // The flag that kernels read, or null; host memory has the same address on both sides.
    const volatile int* stop() const { return stop_; }

    bool active() const { return stop_ != nullptr; }

    // Waits for the stream if the call is long. Returns whether the call is cancelled.
    bool wait() {
        if (!active()) return interrupted();
        check_cuda(cudaEventRecord(event_, stream_), "cudaEventRecord");
        for (cudaError_t status; (status = cudaEventQuery(event_)) != cudaSuccess;) {
            if (status != cudaErrorNotReady) check_cuda(status, "the device");
            if (interrupted()) *stop_ = 1;
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        return interrupted();
    }

  private:
    const cudaStream_t stream_;
    volatile int* stop_ = nullptr;
    cudaEvent_t event_ = nullptr;
};

// Whether the call is cancelled; checked by a whole block in some rounds only, because the read is
// slow.
__device__ inline bool given_up(const volatile int* stop, int round) {
    if (stop == nullptr || round % 64 != 0) return false;
    return __syncthreads_or(threadIdx.x == 0 && *stop != 0);
}

}  // namespace paddle_ext
