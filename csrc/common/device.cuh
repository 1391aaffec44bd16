// Host side of a kernel launch: device selection and error checks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

#include "common/check.h"

namespace paddle_ext {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::ostringstream message;
    message << what << " failed: " << cudaGetErrorString(status);
    throw std::runtime_error(message.str());
}

// Called after every launch, so that an error is reported where it happened and not at the next
// synchronisation.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

inline void fill_bytes(void* at, int value, int64_t bytes, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    check_cuda(cudaMemsetAsync(at, value, size_t(bytes), on), "cudaMemsetAsync");
}

// Makes `device` the current device of the thread during its lifetime.
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

inline int device_attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

inline unsigned grid_size(int64_t blocks) {
    require(blocks < (int64_t(1) << 31), "the task is too large for one launch: ", blocks,
            " blocks");
    return static_cast<unsigned>(blocks);
}

// `bytes` of dynamic shared memory; `name` is for errors.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
            int64_t bytes, void* stream, const Arguments&... arguments) {
    const auto on = static_cast<cudaStream_t>(stream);
    kernel<<<grid_size(blocks), threads, size_t(bytes), on>>>(arguments...);
    check_launch(name);
}

// The same for blocks that wait for one another: all are resident at the same time.
template <typename... Parameters>
void launch_together(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
                     int64_t bytes, void* stream, Parameters... parameters) {
    void* arguments[] = {&parameters...};
    check_cuda(
        cudaLaunchCooperativeKernel(kernel, dim3(grid_size(blocks)), dim3(threads), arguments,
                                    size_t(bytes), static_cast<cudaStream_t>(stream)),
        name);
}

// Blocks of a kernel that are resident at the same time on one multiprocessor.
template <typename... Parameters>
int64_t resident_blocks(void (*kernel)(Parameters...), int threads, int64_t bytes) {
    int blocks = 0;
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, size_t(bytes)),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
}

// Allows a kernel to use all the shared memory a block can have. The amount is always the same: the
// setting belongs to the kernel, so a smaller one would make a launch from another thread fail.
template <typename Kernel>
void allow_all_shared(Kernel* kernel) {
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
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

// Splits the memory of a block into arrays, each aligned to 16 bytes. Host and device share this
// layout code: with a null base it only counts.
class SharedArena {
  public:
    __host__ __device__ explicit SharedArena(void* base)
        : base_(static_cast<char*>(base)), at_(base_) {}

    template <typename T>
    __host__ __device__ T* take(int64_t count) {
        char* const here = at_;
        at_ += round_up(count * int64_t(sizeof(T)), int64_t(16));
        return reinterpret_cast<T*>(here);
    }

    __host__ __device__ int64_t used() const { return at_ - base_; }

  private:
    char* base_;
    char* at_;
};

}  // namespace paddle_ext
