// The only file that knows pybind11: integers and pointers in, exceptions out, the GIL released.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>

#include "common/check.h"
#include "common/params.h"
#include "cpu/paddle.h"
#if PADDLE_EXT_WITH_CUDA
#include "cuda/paddle.h"
#endif

namespace py = pybind11;
using namespace paddle_ext;
using std::int64_t;
using std::uintptr_t;

namespace {

template <typename T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

#if !PADDLE_EXT_WITH_CUDA
[[noreturn]] void no_cuda() {
    throw std::invalid_argument(
        "this build of paddle_ext has no CUDA; build it again with PADDLE_EXT_CUDA=ON");
}
#endif

int64_t paddle_workspace(bool on_cuda, [[maybe_unused]] int device, int threads, int dtype,
                         int64_t B, int64_t Q, int64_t S, int64_t K, int64_t D, bool support_shared,
                         bool indexed, int scaling, [[maybe_unused]] bool prototypes) {
    PaddleParams p{};
    p.size = {B, Q, S, K, D, int64_t(indexed), support_shared};
    p.dtype = static_cast<DType>(dtype);
    p.scaling = static_cast<Scaling>(scaling);
    if (!on_cuda) return paddle_cpu_workspace(p, threads);
#if PADDLE_EXT_WITH_CUDA
    return paddle_cuda_workspace(p, device, prototypes);
#else
    no_cuda();
#endif
}

void paddle_solve(bool on_cuda, [[maybe_unused]] int device, [[maybe_unused]] uintptr_t stream,
                  int threads, int dtype, int64_t B, int64_t Q, int64_t S, int64_t K, int64_t D,
                  int64_t N, bool support_shared, uintptr_t support, uintptr_t support_labels,
                  uintptr_t query, uintptr_t support_index, uintptr_t query_index, double lam,
                  int scaling, double temperature, double epsilon, int max_iter, double tol,
                  uintptr_t labels, uintptr_t assignments, uintptr_t proportions, uintptr_t dual,
                  uintptr_t iterations, uintptr_t criterion, uintptr_t prototypes,
                  uintptr_t workspace, int64_t workspace_bytes) {
    if (B == 0) return;
    PaddleParams p{};
    p.size = {B, Q, S, K, D, N, support_shared};
    p.dtype = static_cast<DType>(dtype);
    p.support = pointer<const void>(support);
    p.support_labels = pointer<const int64_t>(support_labels);
    p.query = pointer<const void>(query);
    p.support_index = pointer<const int64_t>(support_index);
    p.query_index = pointer<const int64_t>(query_index);
    p.lam = lam;
    p.scaling = static_cast<Scaling>(scaling);
    p.temperature = temperature;
    p.epsilon = epsilon;
    p.max_iter = max_iter;
    p.tol = tol;
    p.labels = pointer<int64_t>(labels);
    p.assignments = pointer<void>(assignments);
    p.proportions = pointer<void>(proportions);
    p.dual = pointer<void>(dual);
    p.iterations = pointer<int32_t>(iterations);
    p.criterion = pointer<void>(criterion);
    p.prototypes = pointer<void>(prototypes);
    p.workspace = pointer<void>(workspace);
    p.workspace_bytes = workspace_bytes;
    if (!on_cuda) return paddle_cpu(p, threads);
#if PADDLE_EXT_WITH_CUDA
    paddle_cuda(p, device, pointer<void>(stream));
#else
    no_cuda();
#endif
}

py::dict build_info() {
    py::dict info;
    info["cuda"] = bool(PADDLE_EXT_WITH_CUDA);
    info["cuda_version"] = PADDLE_EXT_CUDA_VERSION;
    info["cuda_architectures"] = PADDLE_EXT_CUDA_ARCHITECTURES;
    info["simd"] = simd_level();
    info["simd_levels"] = simd_levels();
    info["compiler"] = __VERSION__;
    return info;
}

}  // namespace

PYBIND11_MODULE(_native, module, py::mod_gil_not_used()) {
    const auto release = py::call_guard<py::gil_scoped_release>();
    module.doc() = "Native solvers of paddle_ext; see paddle_ext.ops for the checked functions.";
    module.def("build_info", &build_info);
    module.def("set_simd_level", &set_simd_level);
    module.def("paddle_workspace", &paddle_workspace, release);
    module.def("paddle_solve", &paddle_solve, release);
}
