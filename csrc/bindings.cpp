// The Python module: the arguments of each function, and the code it runs.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "calls.h"
#include "common/gamma.h"
#include "common/parallel.h"

namespace py = pybind11;
using namespace paddle_ext;
using std::int64_t;

namespace {

// --- arguments --------------------------------------------------------------------------------

void add_target(py::module_& module) {
    const auto make = [](bool cuda, int threads, int device, uintptr_t stream) {
        return Target{cuda, threads, device, reinterpret_cast<void*>(stream)};
    };
    py::class_<Target>(module, "Target")
        .def(py::init(make), py::kw_only(), py::arg("cuda"), py::arg("threads"), py::arg("device"),
             py::arg("stream"))
        .def_readonly("cuda", &Target::cuda)
        .def_readonly("threads", &Target::threads)
        .def_readonly("device", &Target::device)
        .def_property_readonly(
            "stream", [](const Target& t) { return reinterpret_cast<uintptr_t>(t.stream); });
}

void add_solvers(py::module_& module) {
    add_call<PaddleParams>(module, "paddle", "solve", [](CallKeywords<PaddleParams>& all) {
        using P = PaddleParams;
        constexpr auto n = &P::size;
        PADDLE_EXT_FIELDS(all.make, &P::dtype);
        all.make.add_as<n>("sizes").add_as<n, &PaddleSizes::support_shared>("support_shared");
        PADDLE_EXT_FIELDS(all.make, &P::lam, &P::scaling, &P::temperature, &P::epsilon,
                          &P::max_iter, &P::tol);
        PADDLE_EXT_FIELDS(all.workspace, &P::prototypes);
        PADDLE_EXT_FIELDS(all.run, &P::support, &P::support_labels, &P::query, &P::support_index,
                          &P::query_index, &P::labels, &P::probabilities, &P::proportions, &P::dual,
                          &P::iterations, &P::criterion, &P::prototypes);
    });
    add_call<SinkhornParams>(module, "sinkhorn", "solve", [](auto& all) {
        using P = SinkhornParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::Q, &P::K, &P::row_mass_shared,
                          &P::col_mass_shared, &P::sharpness, &P::max_iter, &P::tol);
        PADDLE_EXT_FIELDS(all.run, &P::cost, &P::row_mass, &P::col_mass, &P::plan, &P::iterations,
                          &P::residual);
    });
    add_call<ValuesParams>(module, "values", "check", [](auto& all) {
        using P = ValuesParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::most, &P::counts);
        PADDLE_EXT_FIELDS(all.run, &P::labels, &P::numbers, &P::found);
    });
    add_call<TimParams>(module, "tim", "solve", [](CallKeywords<TimParams>& all) {
        using P = TimParams;
        using N = TimSizes;
        constexpr auto n = &P::size;
        PADDLE_EXT_FIELDS(all.make, &P::dtype);
        all.make.add_as<n, &N::B>("B").add_as<n, &N::Q>("Q").add_as<n, &N::S>("S");
        all.make.add_as<n, &N::K>("K").add_as<n, &N::D>("D");
        all.make.add_as<n, &N::support_shared>("support_shared");
        PADDLE_EXT_FIELDS(all.make, &P::solver, &P::normalize, &P::temperature);
        all.make.add_as<&P::weight>("weights").add_as<&P::alpha>("alphas");
        PADDLE_EXT_FIELDS(all.make, &P::learning_rate, &P::max_iter);
        PADDLE_EXT_FIELDS(all.run, &P::support, &P::support_labels, &P::query, &P::labels,
                          &P::probabilities, &P::prototypes, &P::losses);
    });
}

void add_adaptive(py::module_& module) {
    add_call<AdaptParams>(module, "adapt", "solve", [](auto& all) {
        using P = AdaptParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::Q, &P::K, &P::weight, &P::max_iter,
                          &P::tol, &P::priors);
        PADDLE_EXT_FIELDS(all.run, &P::logits, &P::measures, &P::labels, &P::probabilities,
                          &P::proportions, &P::dual, &P::iterations, &P::criterion,
                          &P::concentration, &P::bound, &P::chosen);
    });
    add_call<LabelledParams>(module, "labelled", "solve", [](auto& all) {
        using P = LabelledParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::R);
        PADDLE_EXT_FIELDS(all.run, &P::support, &P::labels, &P::first, &P::second, &P::centre,
                          &P::means, &P::shots, &P::own, &P::judging, &P::scale);
    });
    add_call<CoordinatesParams>(module, "coordinates", "solve", [](auto& all) {
        using P = CoordinatesParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D, &P::shared, &P::split);
        PADDLE_EXT_FIELDS(all.run, &P::rows, &P::centre, &P::scale, &P::x);
    });
    add_call<CalibrateParams>(module, "calibrate", "solve", [](auto& all) {
        using P = CalibrateParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::R, &P::K, &P::centre, &P::spread);
        PADDLE_EXT_FIELDS(all.run, &P::distances, &P::labels, &P::count, &P::sharpness,
                          &P::objective, &P::drawn);
    });
    add_call<LikelihoodParams>(module, "likelihood", "solve", [](auto& all) {
        using P = LikelihoodParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::R, &P::full,
                          &P::every, &P::prior_sharpness, &P::spread, &P::support, &P::labels);
        PADDLE_EXT_FIELDS(all.run, &P::centre, &P::means, &P::rows, &P::squares, &P::bias,
                          &P::variance, &P::shots, &P::sharpness, &P::finite, &P::scale, &P::factor,
                          &P::solved, &P::shares, &P::left_out);
    });
    add_call<PosteriorParams>(module, "posterior", "solve", [](CallKeywords<PosteriorParams>& all) {
        using P = PosteriorParams;
        PADDLE_EXT_FIELDS(all.make, &P::dtype);
        all.make.add_as<&P::size>("sizes");
        PADDLE_EXT_FIELDS(all.make, &P::weight, &P::temper, &P::mean_shots, &P::max_iter, &P::tol,
                          &P::added, &P::factor, &P::solved, &P::shares, &P::squares, &P::bias,
                          &P::shots, &P::variance, &P::sharpness, &P::priors, &P::measures);
        PADDLE_EXT_FIELDS(all.run, &P::query, &P::centre, &P::rows, &P::scale, &P::labels,
                          &P::probabilities, &P::proportions, &P::dual, &P::iterations,
                          &P::criterion, &P::concentration, &P::bound, &P::chosen, &P::finite);
    });
}

// For the tests: digamma, trigamma and the logarithm of the gamma function.
py::tuple gamma_functions(double x) {
    const Polygamma<double> found = polygamma(x);
    return py::make_tuple(found.digamma, found.trigamma, log_gamma(x));
}

void add_tasks(py::module_& module) {
    add_call<TaskParams>(module, "tasks", "sample", [](auto& all) {
        using P = TaskParams;
        PADDLE_EXT_FIELDS(all.make, &P::B, &P::Q, &P::K, &P::M, &P::num_classes, &P::k_eff,
                          &P::shots, &P::sampling, &P::alpha, &P::seed, &P::start);
        PADDLE_EXT_FIELDS(all.run, &P::labels, &P::rows, &P::support_begin, &P::support_end,
                          &P::query_begin, &P::query_end, &P::support_index, &P::support_labels,
                          &P::query_index, &P::query_labels);
    });
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
    module.doc() = "Native solvers of paddle_ext; see paddle_ext.solvers for the checked functions.";
    module.def("build_info", &build_info);
    module.def("set_simd_level", &set_simd_level, py::arg("name"), py::pos_only());
    module.def("threads_made", &threads_made);
    module.def("gamma_functions", &gamma_functions, py::arg("x"), py::pos_only());
    add_target(module);
    add_solvers(module);
    add_adaptive(module);
    add_large(module);
    add_tasks(module);
}
