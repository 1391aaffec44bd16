// The Python module: the arguments of each function, and the code it runs.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "calls.h"
#include "common/gamma.h"
#include "common/parallel.h"
#include "cpu/adapt.h"
#include "cpu/calibrate.h"
#include "cpu/labelled.h"
#include "cpu/likelihood.h"
#include "cpu/paddle.h"
#include "cpu/posterior.h"
#include "cpu/simd_level.h"
#include "cpu/sinkhorn.h"
#include "cpu/step.h"
#include "cpu/tasks.h"
#include "cpu/tim.h"
#if PADDLE_EXT_WITH_CUDA
#include "cuda/adapt.h"
#include "cuda/calibrate.h"
#include "cuda/labelled.h"
#include "cuda/likelihood.h"
#include "cuda/paddle.h"
#include "cuda/posterior.h"
#include "cuda/sinkhorn.h"
#include "cuda/step.h"
#include "cuda/tim.h"
#endif

namespace py = pybind11;
using namespace paddle_ext;
using std::int64_t;

namespace {

// How much a call of PADDLE on CUDA needs depends on whether it returns prototypes.
#if PADDLE_EXT_WITH_CUDA
int64_t paddle_workspace(const PaddleParams& p, int device) {
    return paddle_cuda_workspace(p, device, p.prototypes != nullptr);
}
#endif

constexpr Solver<PaddleParams> kPaddle{paddle_cpu_workspace, paddle_cpu,
                                       PADDLE_EXT_CUDA(paddle_workspace),
                                       PADDLE_EXT_CUDA(paddle_cuda)};
constexpr Solver<SinkhornParams> kSinkhorn{sinkhorn_cpu_workspace, sinkhorn_cpu,
                                           PADDLE_EXT_CUDA(sinkhorn_cuda_workspace),
                                           PADDLE_EXT_CUDA(sinkhorn_cuda)};
constexpr Solver<TimParams> kTim{tim_cpu_workspace, tim_cpu, PADDLE_EXT_CUDA(tim_cuda_workspace),
                                 PADDLE_EXT_CUDA(tim_cuda)};
constexpr Solver<AdaptParams> kAdapt{adapt_cpu_workspace, adapt_cpu,
                                     PADDLE_EXT_CUDA(adapt_cuda_workspace),
                                     PADDLE_EXT_CUDA(adapt_cuda)};
constexpr Solver<CalibrateParams> kCalibrate{calibrate_cpu_workspace, calibrate_cpu,
                                             PADDLE_EXT_CUDA(calibrate_cuda_workspace),
                                             PADDLE_EXT_CUDA(calibrate_cuda)};
constexpr Solver<LabelledParams> kLabelled{labelled_cpu_workspace, labelled_cpu,
                                           PADDLE_EXT_CUDA(labelled_cuda_workspace),
                                           PADDLE_EXT_CUDA(labelled_cuda)};
constexpr Solver<CoordinatesParams> kCoordinates{coordinates_cpu_workspace, coordinates_cpu,
                                                 PADDLE_EXT_CUDA(coordinates_cuda_workspace),
                                                 PADDLE_EXT_CUDA(coordinates_cuda)};
constexpr Solver<StepParams> kStep{
    step_cpu_workspace, step_cpu, PADDLE_EXT_CUDA(step_cuda_workspace), PADDLE_EXT_CUDA(step_cuda)};
constexpr Solver<LikelihoodParams> kLikelihood{likelihood_cpu_workspace, likelihood_cpu,
                                               PADDLE_EXT_CUDA(likelihood_cuda_workspace),
                                               PADDLE_EXT_CUDA(likelihood_cuda)};
constexpr Solver<PosteriorParams> kPosterior{posterior_cpu_workspace, posterior_cpu,
                                             PADDLE_EXT_CUDA(posterior_cuda_workspace),
                                             PADDLE_EXT_CUDA(posterior_cuda)};

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
    using C = Call<PaddleParams>;
    using P = PaddleParams;
    constexpr auto p = &C::params;
    constexpr auto n = &P::size;
    CallKeywords<C> all{Keywords<C>("paddle_call"), Keywords<C>("workspace"), Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype").add<p, n>("sizes");
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
    CallClass<C>::add_to(module, "PaddleCall", all, workspace<P, kPaddle>, solve<P, kPaddle>);
}

void add_sinkhorn(py::module_& module) {
    using C = Call<SinkhornParams>;
    using P = SinkhornParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("sinkhorn_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
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
    CallClass<C>::add_to(module, "SinkhornCall", all, workspace<P, kSinkhorn>, solve<P, kSinkhorn>);
}

void add_tim(py::module_& module) {
    using C = Call<TimParams>;
    using P = TimParams;
    using N = TimSizes;
    constexpr auto p = &C::params;
    constexpr auto n = &P::size;
    CallKeywords<C> all{Keywords<C>("tim_call"), Keywords<C>("workspace"), Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
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
    CallClass<C>::add_to(module, "TimCall", all, workspace<P, kTim>, solve<P, kTim>);
}

void add_adapt(py::module_& module) {
    using C = Call<AdaptParams>;
    using P = AdaptParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("adapt_call"), Keywords<C>("workspace"), Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K");
    all.make.add<p, &P::weight>("weight").add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.run.add<p, &P::logits>("logits").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities").add<p, &P::proportions>("proportions");
    all.run.add<p, &P::dual>("dual").add<p, &P::iterations>("iterations");
    all.run.add<p, &P::criterion>("criterion").add<p, &P::concentration>("concentration");
    all.run.add<p, &P::bound>("bound").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "AdaptCall", all, workspace<P, kAdapt>, solve<P, kAdapt>);
}

void add_calibrate(py::module_& module) {
    using C = Call<CalibrateParams>;
    using P = CalibrateParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("calibrate_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::R>("R").add<p, &P::K>("K");
    all.make.add<p, &P::centre>("centre").add<p, &P::spread>("spread");
    all.run.add<p, &P::distances>("distances").add<p, &P::labels>("labels");
    all.run.add<p, &P::count>("count").add<p, &P::sharpness>("sharpness");
    all.run.add<p, &P::objective>("objective").add<p, &P::drawn>("drawn");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "CalibrateCall", all, workspace<P, kCalibrate>,
                         solve<P, kCalibrate>);
}

void add_labelled(py::module_& module) {
    using C = Call<LabelledParams>;
    using P = LabelledParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("labelled_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::R>("R");
    all.run.add<p, &P::support>("support").add<p, &P::labels>("labels");
    all.run.add<p, &P::first>("first").add<p, &P::second>("second");
    all.run.add<p, &P::centre>("centre").add<p, &P::means>("means").add<p, &P::shots>("shots");
    all.run.add<p, &P::own>("own").add<p, &P::judging>("judging").add<p, &P::x>("x");
    all.run.add<p, &P::off>("off").add<p, &P::scale>("scale");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "LabelledCall", all, workspace<P, kLabelled>, solve<P, kLabelled>);
}

void add_coordinates(py::module_& module) {
    using C = Call<CoordinatesParams>;
    using P = CoordinatesParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("coordinates_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::N>("N").add<p, &P::D>("D");
    all.make.add<p, &P::shared>("shared");
    all.run.add<p, &P::rows>("rows").add<p, &P::centre>("centre").add<p, &P::x>("x");
    all.run.add<p, &P::lengths>("lengths");
    CallClass<C>::add_to(module, "CoordinatesCall", all, workspace<P, kCoordinates>,
                         solve<P, kCoordinates>);
}

void add_step(py::module_& module) {
    using C = Call<StepParams>;
    using P = StepParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("step_call"), Keywords<C>("workspace"), Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K");
    all.make.add<p, &P::shared>("shared").add<p, &P::weight>("weight");
    all.make.add<p, &P::temper>("temper");
    all.run.add<p, &P::given>("given").add<p, &P::cross>("cross").add<p, &P::inner>("inner");
    all.run.add<p, &P::own>("own").add<p, &P::extra>("extra").add<p, &P::shots>("shots");
    all.run.add<p, &P::squares>("squares").add<p, &P::sharpness>("sharpness");
    all.run.add<p, &P::constant>("constant").add<p, &P::total>("total");
    all.run.add<p, &P::prior>("prior").add<p, &P::probabilities>("probabilities");
    all.run.add<p, &P::labels>("labels");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "StepCall", all, workspace<P, kStep>, solve<P, kStep>);
}

void add_likelihood(py::module_& module) {
    using C = Call<LikelihoodParams>;
    using P = LikelihoodParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("likelihood_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::S>("S").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::R>("R").add<p, &P::prior_sharpness>("prior_sharpness");
    all.make.add<p, &P::spread>("spread");
    all.run.add<p, &P::support>("support").add<p, &P::labels>("labels");
    all.run.add<p, &P::centre>("centre").add<p, &P::means>("means").add<p, &P::weights>("weights");
    all.run.add<p, &P::squares>("squares").add<p, &P::bias>("bias").add<p, &P::shots>("shots");
    all.run.add<p, &P::sharpness>("sharpness").add<p, &P::usual>("usual");
    all.run.add<p, &P::sound>("sound");
    all.run.add<p, &P::scale>("scale");
    all.run.add<p, &P::workspace>("workspace").add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "LikelihoodCall", all, workspace<P, kLikelihood>,
                         solve<P, kLikelihood>);
}

void add_posterior(py::module_& module) {
    using C = Call<PosteriorParams>;
    using P = PosteriorParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("posterior_call"), Keywords<C>("workspace"),
                        Keywords<C>("solve")};
    all.make.add<&C::target>("target").add<p, &P::dtype>("dtype");
    all.make.add<p, &P::B>("B").add<p, &P::Q>("Q").add<p, &P::K>("K").add<p, &P::D>("D");
    all.make.add<p, &P::shared>("shared").add<p, &P::weight>("weight");
    all.make.add<p, &P::max_iter>("max_iter").add<p, &P::tol>("tol");
    all.make.add<p, &P::squares>("squares").add<p, &P::bias>("bias").add<p, &P::shots>("shots");
    all.make.add<p, &P::sharpness>("sharpness").add<p, &P::lengths>("lengths");
    all.run.add<p, &P::query>("query").add<p, &P::centre>("centre").add<p, &P::weights>("weights");
    all.run.add<p, &P::scale>("scale").add<p, &P::labels>("labels");
    all.run.add<p, &P::probabilities>("probabilities");
    all.run.add<p, &P::proportions>("proportions").add<p, &P::dual>("dual");
    all.run.add<p, &P::iterations>("iterations").add<p, &P::criterion>("criterion");
    all.run.add<p, &P::concentration>("concentration").add<p, &P::bound>("bound");
    all.run.add<p, &P::sound>("sound").add<p, &P::workspace>("workspace");
    all.run.add<p, &P::workspace_bytes>("workspace_bytes");
    CallClass<C>::add_to(module, "PosteriorCall", all, workspace<P, kPosterior>,
                         solve<P, kPosterior>);
}

// For the tests: digamma, trigamma and the logarithm of the gamma function.
py::tuple gamma_functions(double x) {
    const Polygamma<double> found = polygamma(x);
    return py::make_tuple(found.digamma, found.trigamma, log_gamma(x));
}

void add_tasks(py::module_& module) {
    using C = Call<TaskParams>;
    using P = TaskParams;
    constexpr auto p = &C::params;
    CallKeywords<C> all{Keywords<C>("tasks_call"), Keywords<C>("workspace"), Keywords<C>("sample")};
    all.make.add<&C::target>("target");
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
    const auto workspace = [](const C& call) {
        return sample_tasks_workspace(call.params, call.target.threads);
    };
    const auto sample = [](const C& call) { sample_tasks(call.params, call.target.threads); };
    CallClass<C>::add_to(module, "TasksCall", all, workspace, sample);
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
    add_tim(module);
    add_adapt(module);
    add_labelled(module);
    add_coordinates(module);
    add_calibrate(module);
    add_step(module);
    add_likelihood(module);
    add_posterior(module);
    add_large(module);
    add_tasks(module);
}
