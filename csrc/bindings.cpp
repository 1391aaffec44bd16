// The only file that knows pybind11: integers and pointers in, exceptions out, the GIL released.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>

#include "common/check.h"
#include "common/params.h"
#include "cpu/paddle.h"
#include "cpu/simd_level.h"
#include "cpu/sinkhorn.h"
#include "cpu/tasks.h"
#include "cpu/tim.h"
#if PADDLE_EXT_WITH_CUDA
#include "cuda/paddle.h"
#include "cuda/sinkhorn.h"
#include "cuda/tim.h"
#endif

namespace py = pybind11;
using namespace paddle_ext;
using std::int64_t;
using std::uint64_t;
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

int64_t sinkhorn_workspace(bool on_cuda, [[maybe_unused]] int device, int threads, int dtype,
                           int64_t B, int64_t Q, int64_t K) {
    SinkhornParams p{};
    p.B = B;
    p.Q = Q;
    p.K = K;
    p.dtype = static_cast<DType>(dtype);
    if (!on_cuda) return sinkhorn_cpu_workspace(p, threads);
#if PADDLE_EXT_WITH_CUDA
    return sinkhorn_cuda_workspace(p, device);
#else
    no_cuda();
#endif
}

void sinkhorn_solve(bool on_cuda, [[maybe_unused]] int device, [[maybe_unused]] uintptr_t stream,
                    int threads, int dtype, int64_t B, int64_t Q, int64_t K, uintptr_t cost,
                    uintptr_t row_mass, bool row_mass_shared, uintptr_t col_mass,
                    bool col_mass_shared, double reg, int max_iter, double tol, uintptr_t plan,
                    uintptr_t iterations, uintptr_t residual, uintptr_t workspace,
                    int64_t workspace_bytes) {
    if (B == 0) return;
    SinkhornParams p{};
    p.B = B;
    p.Q = Q;
    p.K = K;
    p.dtype = static_cast<DType>(dtype);
    p.cost = pointer<const void>(cost);
    p.row_mass = pointer<const void>(row_mass);
    p.col_mass = pointer<const void>(col_mass);
    p.row_mass_shared = row_mass_shared;
    p.col_mass_shared = col_mass_shared;
    p.reg = reg;
    p.max_iter = max_iter;
    p.tol = tol;
    p.plan = pointer<void>(plan);
    p.iterations = pointer<int32_t>(iterations);
    p.residual = pointer<void>(residual);
    p.workspace = pointer<void>(workspace);
    p.workspace_bytes = workspace_bytes;
    if (!on_cuda) return sinkhorn_cpu(p, threads);
#if PADDLE_EXT_WITH_CUDA
    sinkhorn_cuda(p, device, pointer<void>(stream));
#else
    no_cuda();
#endif
}

int64_t tim_workspace(bool on_cuda, [[maybe_unused]] int device, int threads, int dtype, int64_t B,
                      int64_t Q, int64_t S, int64_t K, int64_t D, bool support_shared) {
    TimParams p{};
    p.size = {B, Q, S, K, D, support_shared};
    p.dtype = static_cast<DType>(dtype);
    if (!on_cuda) return tim_cpu_workspace(p, threads);
#if PADDLE_EXT_WITH_CUDA
    return tim_cuda_workspace(p, device);
#else
    no_cuda();
#endif
}

void tim_solve(bool on_cuda, [[maybe_unused]] int device, [[maybe_unused]] uintptr_t stream,
               int threads, int dtype, int64_t B, int64_t Q, int64_t S, int64_t K, int64_t D,
               bool support_shared, uintptr_t support, uintptr_t support_labels, uintptr_t query,
               int solver, bool normalize, double temperature, std::array<double, 3> weights,
               std::array<double, 3> alphas, double learning_rate, int iterations, uintptr_t labels,
               uintptr_t probabilities, uintptr_t prototypes, uintptr_t losses, uintptr_t workspace,
               int64_t workspace_bytes) {
    if (B == 0) return;
    TimParams p{};
    p.size = {B, Q, S, K, D, support_shared};
    p.dtype = static_cast<DType>(dtype);
    p.support = pointer<const void>(support);
    p.support_labels = pointer<const int64_t>(support_labels);
    p.query = pointer<const void>(query);
    p.solver = static_cast<TimSolver>(solver);
    p.normalize = normalize;
    p.temperature = temperature;
    for (size_t i = 0; i < 3; ++i) {
        p.weight[i] = weights[i];
        p.alpha[i] = alphas[i];
    }
    p.learning_rate = learning_rate;
    p.iterations = iterations;
    p.labels = pointer<int64_t>(labels);
    p.probabilities = pointer<void>(probabilities);
    p.prototypes = pointer<void>(prototypes);
    p.losses = pointer<void>(losses);
    p.workspace = pointer<void>(workspace);
    p.workspace_bytes = workspace_bytes;
    if (!on_cuda) return tim_cpu(p, threads);
#if PADDLE_EXT_WITH_CUDA
    tim_cuda(p, device, pointer<void>(stream));
#else
    no_cuda();
#endif
}

int64_t tasks_workspace(int threads, int64_t B, int64_t Q, int64_t K, int64_t M, int64_t n_ways,
                        int64_t k_eff, int64_t shots) {
    TaskParams p{};
    p.B = B;
    p.Q = Q;
    p.K = K;
    p.M = M;
    p.n_ways = n_ways;
    p.k_eff = k_eff;
    p.shots = shots;
    return sample_tasks_workspace(p, threads);
}

void tasks_sample(int threads, int64_t B, int64_t Q, int64_t K, int64_t M, int64_t n_ways,
                  int64_t k_eff, int64_t shots, int sampling, double alpha, uint64_t seed,
                  uint64_t start, uintptr_t labels, uintptr_t rows, uintptr_t support_begin,
                  uintptr_t support_end, uintptr_t query_begin, uintptr_t query_end,
                  uintptr_t support_index, uintptr_t support_labels, uintptr_t query_index,
                  uintptr_t query_labels, uintptr_t workspace, int64_t workspace_bytes) {
    TaskParams p{};
    p.B = B;
    p.Q = Q;
    p.K = K;
    p.M = M;
    p.n_ways = n_ways;
    p.k_eff = k_eff;
    p.shots = shots;
    p.sampling = static_cast<Sampling>(sampling);
    p.alpha = alpha;
    p.seed = seed;
    p.start = start;
    p.labels = pointer<const int64_t>(labels);
    p.rows = pointer<const int32_t>(rows);
    p.support_begin = pointer<const int32_t>(support_begin);
    p.support_end = pointer<const int32_t>(support_end);
    p.query_begin = pointer<const int32_t>(query_begin);
    p.query_end = pointer<const int32_t>(query_end);
    p.support_index = pointer<int64_t>(support_index);
    p.support_labels = pointer<int64_t>(support_labels);
    p.query_index = pointer<int64_t>(query_index);
    p.query_labels = pointer<int64_t>(query_labels);
    p.workspace = pointer<void>(workspace);
    p.workspace_bytes = workspace_bytes;
    sample_tasks(p, threads);
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
    module.def("sinkhorn_workspace", &sinkhorn_workspace, release);
    module.def("sinkhorn_solve", &sinkhorn_solve, release);
    module.def("tim_workspace", &tim_workspace, release);
    module.def("tim_solve", &tim_solve, release);
    module.def("tasks_workspace", &tasks_workspace, release);
    module.def("tasks_sample", &tasks_sample, release);
}
