// The Python module: the arguments of each function, and the code it runs.

#include <pybind11/stl.h>

#include "calls.h"
#include "common/adapt.h"
#include "common/adaptive.h"
#include "common/groups.h"

namespace py = pybind11;
using namespace paddle_ext;
using std::int64_t;

namespace {

void add_target(py::module_& module) {
    const auto make = [](bool cuda, int threads, int device, uintptr_t stream) {
        return Target{cuda, threads, device, reinterpret_cast<CUstream_st*>(stream)};
    };
    py::class_<Target>(module, "Target")
        .def(py::init(make), py::kw_only(), py::arg("cuda"), py::arg("threads"), py::arg("device"),
             py::arg("stream"))
        .def_property_readonly(
            "stream", [](const Target& t) { return reinterpret_cast<uintptr_t>(t.stream); });
}

void add_calls(py::module_& module) {
    py::options options;
    options.disable_function_signatures();  // the documentation has better ones
#define CALL(Name, name, cpu, cuda) \
    AddedCall<Name##Params>{module, #name} = [](auto& params, auto& make, auto& run)
#define MAKE(type, name) make(#name, params.name)
#define RUN(type, name) run(#name, params.name)
#define OWN(type, name) static_assert(true)
#define MEMORY()           \
    RUN(void*, workspace); \
    RUN(int64_t, workspace_bytes)
#define ONE_BY_ONE(...) static_assert(true)
#include "common/calls.inl"
}

// For the tests: digamma, trigamma and the logarithm of the gamma function.
py::tuple gamma_functions(double x) {
    const Polygamma<double> found = polygamma(x);
    return py::make_tuple(found.digamma, found.trigamma, log_gamma(x));
}

// Numbers that Python shares.
void add_constants(py::module_& module) {
    module.attr("CASES") = kCases;
    module.attr("CHANCES") = kChances;
    module.attr("COVARIANCE_ROWS") = kCovarianceRows;
    module.attr("FACTOR_BLOCK") = kFactorBlock;
    module.attr("FIRST_CONCENTRATION") = kFirstConcentration;
    module.attr("GROUP") = kGroup;
    module.attr("GROUP_STEPS") = kGroupSteps;
    module.attr("GROUP_TURNS") = kGroupTurns;
    module.attr("IMPOSSIBLE") = kImpossible;
    module.attr("MAX_CONCENTRATION") = kMaxConcentration;
    module.attr("MIN_CONCENTRATION") = kMinConcentration;
    module.attr("MIXTURE_STEPS") = kMixtureSteps;
    module.attr("MOST_PAIRED") = kMostPaired;
    module.attr("NO_SCATTER") = kNoScatter;
    module.attr("PRIOR_DEGREES") = kPriorDegrees;
    module.attr("SHARPNESS") = kSharpness;
    module.attr("SHARPNESS_SPREAD") = kSharpnessSpread;
    module.attr("SET_CLASSES") = kSetClasses;
    module.attr("SPLIT_FACTOR") = kSplitFactor;
    module.attr("STANDARD_ERROR") = kStandardError;
    module.attr("VALUES_ROWS") = kValuesRows;
    module.attr("VARIANCE_INSIDE") = kVarianceInside;
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
    module.doc() =
        "Native solvers of paddle_ext; see paddle_ext.solvers for the checked functions.";
    module.def("build_info", &build_info);
    module.def("set_simd_level", &set_simd_level, py::arg("name"), py::pos_only());
    module.def("threads_made", &threads_made);
#if PADDLE_EXT_WITH_CUDA
    module.def("driver_version", &driver_version);
#else
    module.def("driver_version", [] { return 0; });
#endif
    module.def("gamma_functions", &gamma_functions, py::arg("x"), py::pos_only());
    add_constants(module);
    add_target(module);
    add_calls(module);
}
