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

// --- arguments: at most 15 each, see keywords.h ---------------------------------------------

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

void add_paddle(py::module_& module) {
    using P = PaddleParams;
    constexpr auto n = &P::size;
    CallKeywords<P> all("paddle", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype);
    all.make.add_as<n>("sizes").add_as<n, &PaddleSizes::support_shared>("support_shared");
    PADDLE_EXT_FIELDS(all.make, &P::lam, &P::scaling, &P::temperature, &P::epsilon, &P::max_iter,
                      &P::tol);
    PADDLE_EXT_FIELDS(all.workspace, &P::prototypes);
    PADDLE_EXT_FIELDS(all.run, &P::support, &P::support_labels, &P::query, &P::support_index,
                      &P::query_index, &P::labels, &P::probabilities, &P::proportions, &P::dual,
                      &P::iterations, &P::criterion, &P::prototypes);
    add_call(module, "PaddleCall", all);
}

void add_sinkhorn(py::module_& module) {
    using P = SinkhornParams;
    CallKeywords<P> all("sinkhorn", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::Q, &P::K, &P::row_mass_shared,
                      &P::col_mass_shared, &P::sharpness, &P::max_iter, &P::tol);
    PADDLE_EXT_FIELDS(all.run, &P::cost, &P::row_mass, &P::col_mass, &P::plan, &P::iterations,
                      &P::residual);
    add_call(module, "SinkhornCall", all);
}

void add_values(py::module_& module) {
    using P = ValuesParams;
    CallKeywords<P> all("values", "check");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::most, &P::counts);
    PADDLE_EXT_FIELDS(all.run, &P::labels, &P::numbers, &P::found);
    add_call(module, "ValuesCall", all);
}

void add_tim(py::module_& module) {
    using P = TimParams;
    using N = TimSizes;
    constexpr auto n = &P::size;
    CallKeywords<P> all("tim", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype);
    all.make.add_as<n, &N::B>("B").add_as<n, &N::Q>("Q").add_as<n, &N::S>("S");
    all.make.add_as<n, &N::K>("K").add_as<n, &N::D>("D");
    all.make.add_as<n, &N::support_shared>("support_shared");
    PADDLE_EXT_FIELDS(all.make, &P::solver, &P::normalize, &P::temperature);
    all.make.add_as<&P::weight>("weights").add_as<&P::alpha>("alphas");
    PADDLE_EXT_FIELDS(all.make, &P::learning_rate, &P::max_iter);
    PADDLE_EXT_FIELDS(all.run, &P::support, &P::support_labels, &P::query, &P::labels,
                      &P::probabilities, &P::prototypes, &P::losses);
    add_call(module, "TimCall", all);
}

void add_adapt(py::module_& module) {
    using P = AdaptParams;
    CallKeywords<P> all("adapt", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::Q, &P::K, &P::weight, &P::max_iter, &P::tol,
                      &P::priors);
    PADDLE_EXT_FIELDS(all.run, &P::logits, &P::measures, &P::labels, &P::probabilities,
                      &P::proportions, &P::dual, &P::iterations, &P::criterion, &P::concentration,
                      &P::bound, &P::chosen);
    add_call(module, "AdaptCall", all);
}

void add_calibrate(py::module_& module) {
    using P = CalibrateParams;
    CallKeywords<P> all("calibrate", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::R, &P::K, &P::centre, &P::spread);
    PADDLE_EXT_FIELDS(all.run, &P::distances, &P::labels, &P::count, &P::sharpness, &P::objective,
                      &P::drawn);
    add_call(module, "CalibrateCall", all);
}

void add_labelled(py::module_& module) {
    using P = LabelledParams;
    CallKeywords<P> all("labelled", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::R);
    PADDLE_EXT_FIELDS(all.run, &P::support, &P::labels, &P::first, &P::second, &P::centre,
                      &P::means, &P::shots, &P::own, &P::judging, &P::scale);
    add_call(module, "LabelledCall", all);
}

void add_coordinates(py::module_& module) {
    using P = CoordinatesParams;
    CallKeywords<P> all("coordinates", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::N, &P::D, &P::shared, &P::split);
    PADDLE_EXT_FIELDS(all.run, &P::rows, &P::centre, &P::scale, &P::x);
    add_call(module, "CoordinatesCall", all);
}

void add_likelihood(py::module_& module) {
    using P = LikelihoodParams;
    CallKeywords<P> all("likelihood", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype, &P::B, &P::S, &P::K, &P::D, &P::R, &P::full, &P::every,
                      &P::prior_sharpness, &P::spread, &P::support, &P::labels);
    PADDLE_EXT_FIELDS(all.run, &P::centre, &P::means, &P::rows, &P::squares, &P::bias, &P::shots,
                      &P::sharpness, &P::finite, &P::scale, &P::factor, &P::solved, &P::shares,
                      &P::left_out);
    add_call(module, "LikelihoodCall", all);
}

void add_posterior(py::module_& module) {
    using P = PosteriorParams;
    CallKeywords<P> all("posterior", "solve");
    PADDLE_EXT_FIELDS(all.make, &P::dtype);
    all.make.add_as<&P::size>("sizes");
    PADDLE_EXT_FIELDS(all.make, &P::weight, &P::temper, &P::max_iter, &P::tol, &P::added,
                      &P::factor, &P::solved, &P::shares, &P::squares, &P::bias, &P::shots,
                      &P::sharpness, &P::priors, &P::measures);
    PADDLE_EXT_FIELDS(all.run, &P::query, &P::centre, &P::rows, &P::scale, &P::labels,
                      &P::probabilities, &P::proportions, &P::dual, &P::iterations, &P::criterion,
                      &P::concentration, &P::bound, &P::chosen, &P::finite);
    add_call(module, "PosteriorCall", all);
}

// For the tests: digamma, trigamma and the logarithm of the gamma function.
py::tuple gamma_functions(double x) {
    const Polygamma<double> found = polygamma(x);
    return py::make_tuple(found.digamma, found.trigamma, log_gamma(x));
}

void add_tasks(py::module_& module) {
    using P = TaskParams;
    CallKeywords<P> all("tasks", "sample");
    PADDLE_EXT_FIELDS(all.make, &P::B, &P::Q, &P::K, &P::M, &P::num_classes, &P::k_eff, &P::shots,
                      &P::sampling, &P::alpha, &P::seed, &P::start);
    PADDLE_EXT_FIELDS(all.run, &P::labels, &P::rows, &P::support_begin, &P::support_end,
                      &P::query_begin, &P::query_end, &P::support_index, &P::support_labels,
                      &P::query_index, &P::query_labels);
    add_call(module, "TasksCall", all);
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
    module.doc() = "Native solvers of paddle_ext; see paddle_ext.ops for the checked functions.";
    module.def("build_info", &build_info);
    module.def("set_simd_level", &set_simd_level, py::arg("name"), py::pos_only());
    module.def("threads_made", &threads_made);
    module.def("gamma_functions", &gamma_functions, py::arg("x"), py::pos_only());
    add_target(module);
    add_paddle(module);
    add_sinkhorn(module);
    add_values(module);
    add_tim(module);
    add_adapt(module);
    add_labelled(module);
    add_coordinates(module);
    add_calibrate(module);
    add_likelihood(module);
    add_posterior(module);
    add_large(module);
    add_tasks(module);
}
