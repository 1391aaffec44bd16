// Host side of a kernel launch, and error checks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/math.h"
#include "common/workspace.h"

namespace paddle_ext {

inline void check_cuda(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    std::ostringstream message;
    message << what << " failed: " << cudaGetErrorString(status);
    throw std::runtime_error(message.str());
}

inline void fill_bytes(void* at, int value, int64_t bytes, cudaStream_t stream) {
    check_cuda(cudaMemsetAsync(at, value, size_t(bytes), stream), "cudaMemsetAsync");
}

// Of the current device.
inline int device_attribute(cudaDeviceAttr which) {
    int device = 0, value = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

inline unsigned grid_size(int64_t blocks) {
    require(blocks < (int64_t(1) << 31), "the task is too large for one launch: ", blocks,
            " blocks");
    return static_cast<unsigned>(blocks);
}

// `bytes` of dynamic shared memory; `name` is for errors, which are reported where they happened and
// not at the next synchronisation.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
            int64_t bytes, cudaStream_t stream, const Arguments&... arguments) {
    kernel<<<grid_size(blocks), threads, size_t(bytes), stream>>>(arguments...);
    check_cuda(cudaGetLastError(), name);
}

// The same for blocks that wait for one another: all are resident at the same time.
template <typename... Parameters>
void launch_together(const char* name, void (*kernel)(Parameters...), int64_t blocks, int threads,
                     int64_t bytes, cudaStream_t stream, Parameters... parameters) {
    void* arguments[] = {&parameters...};
    check_cuda(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid_size(blocks),
                                           threads, arguments, size_t(bytes), stream),
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
// setting belongs to the kernel, so a smaller one would make a launch from another thread fail. It
// takes as long as a launch, so it is made once.
template <typename Kernel>
void allow_all_shared(Kernel* kernel) {
    static std::mutex mutex;
    static std::set<std::pair<int, Kernel*>> allowed;
    std::pair<int, Kernel*> key{0, kernel};
    check_cuda(cudaGetDevice(&key.first), "cudaGetDevice");
    const std::lock_guard<std::mutex> lock(mutex);
    if (allowed.count(key) > 0) return;
    const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    cudaFuncAttributes attributes;
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    most - int(attributes.sharedSizeBytes)),
               "cudaFuncSetAttribute");
    allowed.insert(key);
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

// Nearly all arrays of calls on CUDA are of floats.
template <typename Base>
__host__ __device__ auto* floats(Base* base, int64_t at = 0) {
    return reals<float>(base, at);
}

// --- chunks of tasks ----------------------------------------------------------------------------

// The bytes of a chunk of so many tasks: Chunk{setup, &arena, tasks} takes its arrays from an arena.
template <typename Chunk, typename Setup>
int64_t chunk_bytes(const Setup& setup, int64_t tasks) {
    Arena arena;
    static_cast<void>(Chunk{setup, &arena, tasks});
    return arena.used();
}

// As many tasks as fit into so many bytes, at least one and at most `most`.
template <typename Chunk, typename Setup>
int64_t tasks_that_fit(const Setup& setup, int64_t bytes, int64_t most) {
    const int64_t one = chunk_bytes<Chunk>(setup, 1), each = chunk_bytes<Chunk>(setup, 2) - one;
    return min(1 + max(bytes - one, int64_t(0)) / max(each, int64_t(1)), most);
}

}  // namespace paddle_ext
