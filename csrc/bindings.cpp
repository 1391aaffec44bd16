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
    constexpr auto p = &Call<P>::params;
    constexpr auto n = &P::size;
    CallKeywords<Call<P>> all("paddle", "solve");
    all.make.add<p, &P::dtype>("dtype").add<p, n>("sizes");
    all.make.add<p, n, &PaddleSizes::support_shared>("support_shared").add<p, &P::lam>("lam");
    all.make.add<p, &P::scaling>("scaling").add<p, &P::temperature>("temperature");
    all.make.add<p, &P::epsilon>("epsilon").add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.workspace.add<p, &P::prototypes>("prototypes");
    all.run.add<p, &P::support>("support").add<p, &P::support_labels>("support_labels");
    all.run.add<p, &P::query>("query").add<p, &P::support_index>("support_index");
    all.run.add<p, &P::query_index>("query_index").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::proportions>("proportions");
    all.run.add<p, &P::dual>("dual").add<p, &P::iterations>("iterations");
    all.run.add<p, &P::criterion>("criterion").add<p, &P::prototypes>("prototypes");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "PaddleCall", all);
}

void add_sinkhorn(py::module_& module) {
    using P = SinkhornParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("sinkhorn", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K");
    all.make.add<p, &P::row_mass_shared>("row_mass_shared");
    all.make.add<p, &P::col_mass_shared>("col_mass_shared").add<p, &P::sharpness>("sharpness");
    all.make.add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.run.add<p, &P::cost>("cost")
        .add<p, &P::row_mass>("row_mass")
        .add<p, &P::col_mass>("col_mass");
    all.run.add<p, &P::plan>("plan").add<p, &P::iterations>("iterations");
    all.run.add<p, &P::residual>("residual").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "SinkhornCall", all);
}

void add_values(py::module_& module) {
    using P = ValuesParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("values", "check");
    all.make.add<p, &P::dtype>("dtype").add<p, &P::B>("B").add<p, &P::S>("S");
    all.make.add<p, &P::most>("most").add<p, &P::counts>("counts");
    all.run.add<p, &P::labels>("labels").add<p, &P::numbers>("numbers").add<p, &P::found>("found");
    add_call(module, "ValuesCall", all);
}

void add_tim(py::module_& module) {
    using P = TimParams;
    using N = TimSizes;
    constexpr auto p = &Call<P>::params;
    constexpr auto n = &P::size;
    CallKeywords<Call<P>> all("tim", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, n, &N::B>("B").add<p, n, &N::Q>("Q").add<p, n, &N::S>("S");
    all.make.add<p, n, &N::K>("K").add<p, n, &N::D>("D");
    all.make.add<p, n, &N::support_shared>("support_shared");
    all.make.add<p, &P::solver>("solver").add<p, &P::normalize>("normalize");
    all.make.add<p, &P::temperature>("temperature").add<p, &P::weight>("weights");
    all.make.add<p, &P::alpha>("alphas").add<p, &P::learning_rate>("learning_rate");
    all.make.add<p, &P::max_iter>("max_iter");
    all.run.add<p, &P::support>("support").add<p, &P::support_labels>("support_labels");
    all.run.add<p, &P::query>("query").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::prototypes>("prototypes");
    all.run.add<p, &P::losses>("losses").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "TimCall", all);
}

void add_adapt(py::module_& module) {
    using P = AdaptParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("adapt", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K");
    all.make.add<p, &P::weight>("weight").add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.run.add<p, &P::logits>("logits").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::proportions>("proportions");
    all.run.add<p, &P::dual>("dual").add<p, &P::iterations>("iterations");
    all.run.add<p, &P::criterion>("criterion").add<p, &P::concentration>("concentration");
    all.run.add<p, &P::bound>("bound").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "AdaptCall", all);
}

void add_calibrate(py::module_& module) {
    using P = CalibrateParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("calibrate", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::R>("R").add<p, &P::K>("K");
    all.make.add<p, &P::centre>("centre").add<p, &P::spread>("spread");
    all.run.add<p, &P::distances>("distances").add<p, &P::labels>("labels");
    all.run.add<p, &P::count>("count").add<p, &P::sharpness>("sharpness");
    all.run.add<p, &P::objective>("objective").add<p, &P::drawn>("drawn");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "CalibrateCall", all);
}

void add_labelled(py::module_& module) {
    using P = LabelledParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("labelled", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::R>("R");
    all.run.add<p, &P::support>("support").add<p, &P::labels>("labels");
    all.run.add<p, &P::first>("first").add<p, &P::second>("second");
    all.run.add<p, &P::centre>("centre").add<p, &P::means>("means").add<p, &P::shots>("shots");
    all.run.add<p, &P::own>("own").add<p, &P::judging>("judging").add<p, &P::scale>("scale");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "LabelledCall", all);
}

void add_coordinates(py::module_& module) {
    using P = CoordinatesParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("coordinates", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.make.add<p, &P::shared>("shared").add<p, &P::split>("split");
    all.run.add<p, &P::rows>("rows").add<p, &P::centre>("centre").add<p, &P::x>("x");
    add_call(module, "CoordinatesCall", all);
}

void add_likelihood(py::module_& module) {
    using P = LikelihoodParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("likelihood", "solve");
    all.make.add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::R>("R").add<p, &P::full>("full").add<p, &P::every>("every");
    all.make.add<p, &P::prior_sharpness>("prior_sharpness").add<p, &P::spread>("spread");
    all.make.add<p, &P::support>("support").add<p, &P::labels>("labels");
    all.run.add<p, &P::centre>("centre").add<p, &P::means>("means").add<p, &P::rows>("rows");
    all.run.add<p, &P::squares>("squares").add<p, &P::bias>("bias").add<p, &P::shots>("shots");
    all.run.add<p, &P::sharpness>("sharpness").add<p, &P::finite>("finite");
    all.run.add<p, &P::scale>("scale").add<p, &P::factor>("factor");
    all.run.add<p, &P::solved>("solved").add<p, &P::shares>("shares");
    all.run.add<p, &P::left_out>("left_out");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "LikelihoodCall", all);
}

void add_posterior(py::module_& module) {
    using P = PosteriorParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("posterior", "solve");
    all.make.add<p, &P::dtype>("dtype").add<p, &P::size>("sizes");
    all.make.add<p, &P::weight>("weight").add<p, &P::temper>("temper");
    all.make.add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.make.add<p, &P::added>("added").add<p, &P::factor>("factor").add<p, &P::solved>("solved");
    all.make.add<p, &P::shares>("shares").add<p, &P::squares>("squares");
    all.make.add<p, &P::bias>("bias").add<p, &P::shots>("shots");
    all.make.add<p, &P::sharpness>("sharpness");
    all.run.add<p, &P::query>("query").add<p, &P::centre>("centre").add<p, &P::rows>("rows");
    all.run.add<p, &P::scale>("scale").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities");
    all.run.add<p, &P::proportions>("proportions").add<p, &P::dual>("dual");
    all.run.add<p, &P::iterations>("iterations").add<p, &P::criterion>("criterion");
    all.run.add<p, &P::concentration>("concentration").add<p, &P::bound>("bound");
    all.run.add<p, &P::finite>("finite").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    add_call(module, "PosteriorCall", all);
}

// For the tests: digamma, trigamma and the logarithm of the gamma function.
py::tuple gamma_functions(double x) {
    const Polygamma<double> found = polygamma(x);
    return py::make_tuple(found.digamma, found.trigamma, log_gamma(x));
}

void add_tasks(py::module_& module) {
    using P = TaskParams;
    constexpr auto p = &Call<P>::params;
    CallKeywords<Call<P>> all("tasks", "sample");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K").add<p, &P::M>("M");
    all.make.add<p, &P::num_classes>("num_classes")
        .add<p, &P::k_eff>("k_eff")
        .add<p, &P::shots>("shots");
    all.make.add<p, &P::sampling>("sampling").add<p, &P::alpha>("alpha").add<p, &P::seed>("seed");
    all.make.add<p, &P::start>("start");
    all.run.add<p, &P::labels>("labels").add<p, &P::rows>("rows");
    all.run.add<p, &P::support_begin>("support_begin").add<p, &P::support_end>("support_end");
    all.run.add<p, &P::query_begin>("query_begin").add<p, &P::query_end>("query_end");
    all.run.add<p, &P::support_index>("support_index").add<p, &P::support_labels>("support_labels");
    all.run.add<p, &P::query_index>("query_index").add<p, &P::query_labels>("query_labels");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
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
