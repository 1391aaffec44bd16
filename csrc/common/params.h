// The parameters of a call, passed by value, and the functions that take them; both are made from
// common/calls.inl.
#pragma once

#include <cstdint>

struct CUstream_st;  // what a cudaStream_t points to

namespace paddle_ext {

// Runs on the CPU with this many threads, or on a stream of a CUDA device.
struct Target {
    bool cuda;
    int threads;          // CPU
    int device;           // CUDA
    CUstream_st* stream;  // CUDA
};

// Makes `device` the current CUDA device of the thread during its lifetime.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    int device_, before_ = 0;
};

// The newest version of CUDA that the driver runs, such as 13020; 0 without a driver.
int driver_version();

enum class DType : int { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2, kFloat64 = 3 };
// With kAuto, rows are normalised to unit length.
enum class Scaling : int { kNone = 0, kMinMax = 1, kAuto = 2 };
enum class Prior : int { kPaddle = 0, kDirichlet = 1 };  // of the class proportions
enum class TimSolver : int { kGradient = 0, kAlternating = 1 };
enum class Sampling : int { kUniform = 0, kBalanced = 1, kDirichlet = 2 };

// Returned instead of a workspace size: a task does not fit this code.
constexpr int64_t kTooLarge = -1;

struct TaskSizes {
    int64_t B, Q, S, K, D;
    int64_t N;            // rows of the bank; 0 when support and query are given directly
    bool support_shared;  // one support set for all tasks
};
using TimTerms = double[3];

struct ProductsSizes {
    int64_t B, Q, K, D;
    int64_t M;  // columns of the factor, 0 without
    int64_t N;  // rows of a likelihood
    int64_t L;  // likelihoods: one for each task, or one for all
};

constexpr int kValuesArrays = 3;
constexpr int64_t kValuesRows = 1 << 16;  // limit on the labels of a task on CUDA
using ValuesCounts = int64_t[kValuesArrays];
using ValuesPointers = const void* [kValuesArrays];

// Where a call has code.
template <bool cpu, bool cuda>
struct On {
    static constexpr bool kCpu = cpu, kCuda = cuda;
};
template <typename... Params>
struct ParamsList;

// The functions of a call: the bytes of workspace it needs, if it has memory, and the call itself. On
// CUDA everything runs on `stream` of the current device. For CPU_TASKS, cpu/levels.h has both.
#define PADDLE_EXT_RUN_CPU(Params)                       \
    int64_t workspace_cpu(const Params& p, int threads); \
    void run_cpu(const Params& p, int threads);
#define PADDLE_EXT_RUN_CPU_TASKS(Params)
#define PADDLE_EXT_RUN_NO_CPU(Params)
#define PADDLE_EXT_RUN_CUDA(Params)          \
    int64_t workspace_cuda(const Params& p); \
    void run_cuda(const Params& p, CUstream_st* stream);
#define PADDLE_EXT_RUN_NO_CUDA(Params)
#define PADDLE_EXT_HAS_CPU true
#define PADDLE_EXT_HAS_CPU_TASKS true
#define PADDLE_EXT_HAS_NO_CPU false
#define PADDLE_EXT_HAS_CUDA true
#define PADDLE_EXT_HAS_NO_CUDA false

#define CALL(Name, name, cpu, cuda)                                                            \
    struct Name##Params;                                                                       \
    PADDLE_EXT_RUN_##cpu(Name##Params) PADDLE_EXT_RUN_##cuda(Name##Params) struct Name##Params \
        : On<PADDLE_EXT_HAS_##cpu, PADDLE_EXT_HAS_##cuda>
#define MAKE(type, name) type name
#define RUN(type, name) type name
#define OWN(type, name) type name
#define MEMORY()     \
    void* workspace; \
    int64_t workspace_bytes
#define ONE_BY_ONE(...) using OneByOne = ParamsList<__VA_ARGS__>
#include "common/calls.inl"
#undef CALL
#undef MAKE
#undef RUN
#undef OWN
#undef MEMORY
#undef ONE_BY_ONE

}  // namespace paddle_ext
