// A call from Python: the solver of its target, the CPU or CUDA.
#pragma once

#include "common/check.h"
#include "keywords.h"

// CUDA code, or null in a build without it.
#if PADDLE_EXT_WITH_CUDA
#define PADDLE_EXT_CUDA(function) function
#else
#define PADDLE_EXT_CUDA(function) nullptr
#endif

namespace paddle_ext {

template <typename Params>
struct Solver {
    int64_t (*cpu_workspace)(const Params&, int threads);
    void (*cpu)(const Params&, int threads);
    int64_t (*cuda_workspace)(const Params&, int device);
    void (*cuda)(const Params&, int device, void* stream);
};

template <typename Params>
struct Call {
    Target target;
    Params params;
};

inline void require_cuda(bool has) {
    require(PADDLE_EXT_WITH_CUDA,
            "this build of paddle_ext has no CUDA; rebuild it with PADDLE_EXT_CUDA=ON");
    require(has, "this function runs on the CPU only");
}

inline void require_cpu(bool has) { require(has, "this function runs on CUDA only"); }

template <typename Params, const Solver<Params>& solver>
int64_t workspace(const Call<Params>& call) {
    require_cpu(call.target.cuda || solver.cpu_workspace != nullptr);
    if (!call.target.cuda) return solver.cpu_workspace(call.params, call.target.threads);
    require_cuda(solver.cuda_workspace != nullptr);
    return solver.cuda_workspace(call.params, call.target.device);
}

template <typename Params, const Solver<Params>& solver>
void solve(const Call<Params>& call) {
    require_cpu(call.target.cuda || solver.cpu != nullptr);
    if (!call.target.cuda) return solver.cpu(call.params, call.target.threads);
    require_cuda(solver.cuda != nullptr);
    solver.cuda(call.params, call.target.device, call.target.stream);
}

// Adds the steps of large tasks to the module.
void add_large(py::module_& module);

}  // namespace paddle_ext
