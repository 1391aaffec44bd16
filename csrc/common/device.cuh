// Host side of a kernel launch: the device to run on, and what went wrong.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace paddle_ext {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::ostringstream message;
    message << what << " failed: " << cudaGetErrorString(status);
    throw std::runtime_error(message.str());
}

// After every launch: an error is told where it happened, not at the next synchronisation.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

// Makes `device` the thread's current one for as long as it lives.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device) {
        check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
        changed_ = device != before_;
        if (changed_) check_cuda(cudaSetDevice(device), "cudaSetDevice");
    }
    ~DeviceGuard() {
        if (changed_) cudaSetDevice(before_);
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    int before_ = 0;
    bool changed_ = false;
};

// Lets a kernel ask for all the shared memory that a block of it can have. Always the same amount: the
// setting is the kernel's, so a smaller one would fail the launch of another thread.
template <typename Kernel>
void allow_all_shared(Kernel* kernel) {
    int device = 0, most = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "cudaDeviceGetAttribute");
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - int(attributes.sharedSizeBytes)),
               "cudaFuncSetAttribute");
}

template <typename A, typename B>
__host__ __device__ constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

template <typename A, typename B>
__host__ __device__ constexpr auto round_up(A a, B b) {
    return ceil_div(a, b) * b;
}

}  // namespace paddle_ext
