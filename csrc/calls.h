// A call from Python: runs the functions that take its parameters (common/params.h), on the CPU or
// on CUDA.
#pragma once

#include <type_traits>

#include "common/check.h"
#include "common/large.h"
#include "cpu/launch.h"
#include "keywords.h"

namespace paddle_ext {

template <typename Params>
struct Call {
    Target target;
    Params params;
};

template <typename Params>
constexpr bool kOnCpu = !std::is_same_v<Params, SplitParams>;
template <typename Params>
constexpr bool kOnCuda = !std::is_same_v<Params, SumsParams> && !std::is_same_v<Params, TaskParams>;

inline void require_code(bool cuda, bool on_cpu, bool on_cuda) {
    require(cuda || on_cpu, "this function runs on CUDA only");
    require(!cuda || PADDLE_EXT_WITH_CUDA,
            "this build of paddle_ext has no CUDA; rebuild it with PADDLE_EXT_CUDA=ON");
    require(!cuda || on_cuda, "this function runs on the CPU only");
}

template <typename Params>
int64_t workspace_of(const Call<Params>& call) {
    const Target& at = call.target;
    require_code(at.cuda, kOnCpu<Params>, kOnCuda<Params>);
    if constexpr (kOnCuda<Params> && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) return workspace_cuda(call.params, at.device);
    }
    if constexpr (kOnCpu<Params>) return workspace_cpu(call.params, at.threads);
    return 0;
}

template <typename Params>
void run(const Call<Params>& call) {
    const Target& at = call.target;
    require_code(at.cuda, kOnCpu<Params>, kOnCuda<Params>);
    if constexpr (kOnCuda<Params> && PADDLE_EXT_WITH_CUDA) {
        if (at.cuda) return run_cuda(call.params, at.device, at.stream);
    }
    if constexpr (kOnCpu<Params>) run_cpu(call.params, at.threads);
}

template <typename Params>
void add_call(py::module_& module, const char* name, const CallKeywords<Call<Params>>& all) {
    CallClass<Call<Params>>::add_to(module, name, all, workspace_of<Params>, run<Params>);
}

// Adds the steps of large tasks to the module.
void add_large(py::module_& module);

}  // namespace paddle_ext
